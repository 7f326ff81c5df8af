"""Collectors that start quickly: forked from a process that has imported everything.

`python -m tests.collect.forked_collectors` is that process. It reads a line of JSON for each
collector to start, and answers with its pid.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from tests.collect.counting_senders import pipeline

from millstream.collect.service import run
from millstream.runtime.home import Home
from millstream.runtime.parent_death import die_with_parent
from millstream.settings import Settings


class Process:
    """A forked collector. It is not our child, so it is watched by a pidfd."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self._descriptor = -1

    @property
    def is_alive(self) -> bool:
        return self._descriptor >= 0 and not self._has_ended(0)

    def kill(self) -> None:
        """Kill it with SIGKILL; returns when it has ended."""
        if self.is_alive:
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
            assert self._has_ended(30), f"process {self.pid} does not die"
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _has_ended(self, seconds: float) -> bool:
        return bool(select.select([self._descriptor], [], [], seconds)[0])


class CollectorForker:
    """Starts collectors; a context manager that kills all of them at the end."""

    def __enter__(self) -> CollectorForker:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        self._started: list[Process] = []
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for process in self._started:
            process.kill()
        self._process.communicate()

    def start(self, app: str, home: Path, settings: dict[str, Any]) -> Process:
        """Start a collector for the counting pipeline; it may end at once."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([app, str(home), settings]) + "\n")
        self._process.stdin.flush()
        process = Process(int(self._process.stdout.readline()))
        self._started = [each for each in self._started if each.is_alive]
        self._started.append(process)
        return process


def _collect(app: str, home: str, settings: dict[str, Any]) -> None:
    sys.stdin.close()
    os.dup2(sys.stderr.fileno(), 1)  # the other end expects pids there
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    run(pipeline(app), Settings.model_validate(settings), Home(Path(home)))


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # exit codes are not read
    die = die_with_parent()
    for line in sys.stdin:
        app, home, settings = cast("tuple[str, str, dict[str, Any]]", json.loads(line))
        if pid := os.fork():
            print(pid, flush=True)
            continue
        code = 1
        try:
            die()
            _collect(app, home, settings)
            code = 0
        except Exception as error:
            print(f"collector {os.getpid()}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)


if __name__ == "__main__":
    main()
