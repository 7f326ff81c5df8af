"""The folder where one running system keeps its state, and where its processes find each other."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from millstream.errors import HomeInUse

_ORPHANS_SECONDS = 10.0  # the kernel kills them with their parent; that takes it a moment

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Home:
    """Paths below `--home`, and `run.json`, by which commands find what is running."""

    path: Path

    @property
    def kafka(self) -> Path:
        return self.path / "kafka"

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def workers(self) -> Path:
        """Where the workers of one collector find each other."""
        return self.path / "workers"

    @property
    def failed(self) -> Path:
        return self.path / "failed"

    @property
    def keys(self) -> Path:
        return self.path / "keys.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def run_file(self) -> Path:
        return self.path / "run.json"

    def running(self) -> dict[str, Any]:
        """What `run.json` says, without the entries of processes that are dead."""
        try:
            entries: dict[str, Any] = json.loads(self.run_file.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        alive = {
            name: entry
            for name, entry in entries.items()
            if isinstance(entry, dict) and is_alive(entry.get("pid", 0))
        }
        if is_alive(entries.get("pid", 0)):
            alive["pid"] = entries["pid"]
        return alive

    def announce(self, name: str, *, pid: int | None = None, **facts: Any) -> None:
        """Tell the home's other processes that `name` is ready; a live namesake keeps its entry.

        `pid` is the process that does the work, where that is a child of this one.
        """
        pid = pid or os.getpid()
        with self._changing() as entries:
            if entries.get(name, {}).get("pid", pid) == pid:
                entries[name] = {"pid": pid, **facts}

    def announce_run(self) -> None:
        """Tell that this process supervises the home."""
        with self._changing() as entries:
            entries["pid"] = os.getpid()

    def withdraw(self) -> None:
        """Remove this process's entries."""
        with self._changing() as entries:
            for name in list(entries):
                entry = entries[name]
                if (entry["pid"] if isinstance(entry, dict) else entry) == os.getpid():
                    del entries[name]

    @contextlib.contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Hold `name` as long as this process and those that it forks live.

        HomeInUse names the holder. A holder that was killed may have children that are just dying:
        those are waited for.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / f"{name}.lock", "a+", encoding="utf-8") as file:
            deadline = time.monotonic() + _ORPHANS_SECONDS
            while not _lock(file):
                file.seek(0)
                holder = file.read().strip() or "unknown"
                if not holder.isdigit() or is_alive(int(holder)) or time.monotonic() > deadline:
                    raise HomeInUse(
                        f"cannot start {name} in {self.path}: process {holder} runs there already",
                        remedy=f"stop it (kill {holder}), or give another --home",
                    )
                time.sleep(0.02)
            file.truncate(0)
            with contextlib.suppress(OSError):  # the disk is full: it is held all the same
                os.write(file.fileno(), b"%d" % os.getpid())
            yield

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / "run.json.lock", "a", encoding="utf-8") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            entries = self.running()
            yield entries
            self._write(json.dumps(entries, indent=2))

    def _write(self, text: str) -> None:
        fresh = self.run_file.with_suffix(".new")
        try:
            fresh.write_text(text)
            fresh.replace(self.run_file)
        except OSError as error:  # a full disk: what we are here for must go on all the same
            _logger.warning("cannot write %s anew: %s", self.run_file, error)
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
                with open(self.run_file, "r+", encoding="utf-8") as file:
                    file.write(text)
                    file.truncate()


def _lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_alive(pid: int) -> bool:
    """Whether a process of that number exists and is not a zombie."""
    if pid <= 0:
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return _exists(pid) if not Path("/proc/self").exists() else False
    except OSError:
        return False
    return state not in "ZX"


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
