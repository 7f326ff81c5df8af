"""The folder where one running system keeps its state, and where its processes find each other."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from millstream.errors import HomeInUse

_ORPHANS_SECONDS = 10.0  # the kernel kills them with their parent; that takes it a moment

_COLLECTOR = re.compile(r"collect(-\d+)?")

_FOLDERS = {"kafka", "journal", "workers", "failed", "checkpoints", "logs", "spark", "dropped"}
_FILES = {"run.json", "failing.json", "keys.json"}

_log = logging.getLogger(__name__)


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

    def journals(self) -> dict[int, Path]:
        """The folder of each collector process's journal, by its number."""
        found = self.journal.iterdir() if self.journal.is_dir() else ()
        return {int(path.name): path for path in sorted(found) if path.name.isdigit()}

    @property
    def damaged(self) -> list[Path]:
        """Where the journals of all workers keep what was damaged."""
        return sorted(self.journal.glob("*/damaged"))

    @property
    def workers(self) -> Path:
        """Where the collector processes of this home publish their health and metrics."""
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

    @property
    def failing_file(self) -> Path:
        """Which processes keep dying, as `run` reports it."""
        return self.path / "failing.json"

    def make(self) -> None:
        """Make the folder, for its owner alone, and take from others what they may read of it.

        A folder that holds other files too (`--home .`) keeps its rights: what is ours in it does
        not. OSError if it cannot be made.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = {entry.name for entry in self.path.iterdir()}
        if all(name in _FOLDERS | _FILES or name.endswith((".lock", ".new")) for name in names):
            _narrow(self.path)
        for name in names & _FOLDERS:
            _narrow(self.path / name)

    def running(self) -> dict[str, Any]:
        """What `run.json` says, without the entries of processes that are dead."""
        try:
            entries: dict[str, Any] = json.loads(self.run_file.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        alive = {
            name: entry
            for name, entry in entries.items()
            if isinstance(entry, dict) and is_alive(entry.get("pid", 0), entry.get("started"))
        }
        if is_alive(entries.get("pid", 0), entries.get("started")):
            alive |= {name: entries[name] for name in ("pid", "started") if name in entries}
        return alive

    def announce(self, name: str, *, pid: int | None = None, **facts: Any) -> None:
        """Tell the home's other processes that `name` is ready; a live namesake keeps its entry.

        `pid` is the process that does the work, where that is a child of this one.
        """
        pid = pid or os.getpid()
        with self._changing() as entries:
            if entries.get(name, {}).get("pid", pid) == pid:
                entries[name] = {"pid": pid, "started": start_time(pid), **facts}

    def announce_run(self) -> None:
        """Tell that this process supervises the home."""
        with self._changing() as entries:
            entries |= {"pid": os.getpid(), "started": start_time(os.getpid())}

    def withdraw(self) -> None:
        """Remove this process's entries."""
        with self._changing() as entries:
            for name, entry in list(entries.items()):
                if isinstance(entry, dict) and entry["pid"] == os.getpid():
                    del entries[name]
            if entries.get("pid") == os.getpid():
                del entries["pid"]
                entries.pop("started", None)

    @contextlib.contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Hold `name` as long as this process and those that it forks live.

        HomeInUse names the holder. A holder that was killed may have children that are just dying:
        those are waited for.
        """
        self.make()
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
        self.make()
        with open(self.path / "run.json.lock", "a", encoding="utf-8") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            entries = self.running()
            yield entries
            try:
                self.replace_file(self.run_file, json.dumps(entries, indent=2).encode())
            except OSError as error:  # what we are here for must go on all the same
                _log.warning("cannot write %s: %s", self.run_file, error)

    @staticmethod
    def replace_file(path: Path, content: bytes) -> None:
        """Write a file whole: beside itself if the disk has room, else in its own blocks.

        OSError if neither can be done.
        """
        fresh = path.with_suffix(".new")
        try:
            fresh.write_bytes(content)
            fresh.replace(path)
        except OSError:  # a full disk
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            if not path.exists():
                raise
            with open(path, "r+b") as file:
                file.write(content)
                file.truncate()


def collector_name(worker: int) -> str:
    """The name of a collector process in `run.json`, in locks and in the logs' folder."""
    return f"collect-{worker}" if worker else "collect"


def collectors(running: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of collector processes in what `Home.running` returns."""
    return {name: entry for name, entry in running.items() if _COLLECTOR.fullmatch(name)}


def private_opener(path: str, flags: int) -> int:
    """For `open`: the files that it makes can be read by their owner alone."""
    return os.open(path, flags, 0o600)


def _narrow(path: Path) -> None:
    """Take all rights from everybody but the owner, if that is us."""
    with contextlib.suppress(OSError):
        found = path.stat()
        if found.st_mode & 0o077 and found.st_uid == os.geteuid():
            path.chmod(0o700)


def _lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_alive(pid: int, started: int | None = None) -> bool:
    """Whether a process of that number exists and is not a zombie.

    The kernel gives a number to the next process or thread soon after the death of its owner.
    `started` tells them apart: it is what `start_time` gave for the owner.
    """
    if pid <= 0:
        return False
    try:
        fields = _stat(pid)
    except FileNotFoundError:
        return _exists(pid) if not Path("/proc/self").exists() else False
    except OSError:
        return False
    return fields[0] not in "ZX" and started in (None, int(fields[19]))


def start_time(pid: int) -> int | None:
    """When a process started, in the kernel's ticks since boot; None where that is not known."""
    try:
        return int(_stat(pid)[19])
    except OSError:
        return None


def _stat(pid: int) -> list[str]:
    """What the kernel says of a process, from its state on (man 5 proc_pid_stat)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
