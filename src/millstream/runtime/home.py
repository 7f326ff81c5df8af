"""The folder of a running system: its state, and the file with its running processes."""

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

_ORPHANS_SECONDS = 10.0  # for the kernel to kill the children of a dead process

_COLLECTOR = re.compile(r"collect(-\d+)?")

_FOLDERS = {"kafka", "journal", "workers", "failed", "checkpoints", "logs", "spark", "dropped"}
_FILES = {"run.json", "failing.json", "keys.json", "operator.key"}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Home:
    """Paths below `--home`, and `run.json`, which lists the running processes."""

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
        """The folders of damaged entries of all workers' journals."""
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
        """The processes that keep dying, as `run` reports them."""
        return self.path / "failing.json"

    def make(self) -> None:
        """Create the folder for its owner alone, and remove the permissions of others.

        A folder with other files (`--home .`) keeps its permissions; our files in it do not.
        OSError if it cannot be created.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = {entry.name for entry in self.path.iterdir()}
        if all(name in _FOLDERS | _FILES or name.endswith((".lock", ".new")) for name in names):
            _make_private(self.path)
        for name in names & _FOLDERS:
            _make_private(self.path / name)

    def running(self) -> dict[str, Any]:
        """The content of `run.json`, without dead processes."""
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
        """Add `name` to `run.json`: it is ready. A live process of that name keeps its entry.

        `pid` is the process that does the work, if it is a child of this one.
        """
        pid = pid or os.getpid()
        with self._edit_run_file() as entries:
            if entries.get(name, {}).get("pid", pid) == pid:
                entries[name] = {"pid": pid, "started": start_time(pid), **facts}

    def announce_run(self) -> None:
        """Note in `run.json` that this process supervises the home."""
        with self._edit_run_file() as entries:
            entries |= {"pid": os.getpid(), "started": start_time(os.getpid())}

    def withdraw(self) -> None:
        """Remove this process's entries."""
        with self._edit_run_file() as entries:
            for name, entry in list(entries.items()):
                if isinstance(entry, dict) and entry["pid"] == os.getpid():
                    del entries[name]
            if entries.get("pid") == os.getpid():
                del entries["pid"]
                entries.pop("started", None)

    @contextlib.contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Lock `name` as long as this process and its forks live.

        HomeInUse names the process that has the lock. If that process was killed, this waits for
        its dying children.
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
            with contextlib.suppress(OSError):  # the disk is full: the lock is valid anyway
                os.write(file.fileno(), b"%d" % os.getpid())
            yield

    @contextlib.contextmanager
    def _edit_run_file(self) -> Iterator[dict[str, Any]]:
        self.make()
        with open(self.path / "run.json.lock", "a", encoding="utf-8") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            entries = self.running()
            yield entries
            try:
                self.replace_file(self.run_file, json.dumps(entries, indent=2).encode())
            except OSError as error:  # the process must continue anyway
                _log.warning("cannot write %s: %s", self.run_file, error)

    @staticmethod
    def replace_file(path: Path, content: bytes) -> None:
        """Replace a file's content: with a new file, or in place if the disk is full.

        OSError if both fail.
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
    """For `open`: new files can be read by their owner only."""
    return os.open(path, flags, 0o600)


def _make_private(path: Path) -> None:
    """Remove the permissions of everybody but the owner, if we are the owner."""
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
    """Whether a process with this pid exists and is not a zombie.

    The kernel reuses pids. `started`, the `start_time` of the process, identifies it.
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
    """When a process started, in ticks since boot; None if unknown."""
    try:
        return int(_stat(pid)[19])
    except OSError:
        return None


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on (man 5 proc_pid_stat)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
