"""One running process, the group that it leads, and its log."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from millstream.runtime.home import is_alive
from millstream.supervise import launch, logfile


class Child:
    """A process in a session of its own, so that the terminal's Ctrl-C reaches only the supervisor.

    Must be made in a thread that lives as long as the supervisor: the kernel ends a child with the
    thread that made it.
    """

    def __init__(self, command: tuple[str, ...], log: Path) -> None:
        with logfile.open_log(log) as output:
            self.log = log
            self.log_start = output.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def exit_code(self) -> int | None:
        """How it ended (negative: by which signal), or None while it runs.

        It is not reaped before `release`: until then its number, and so its group's, is not given
        to another process, and `kill` cannot hit a stranger.
        """
        if self._process.returncode is not None:
            return self._process.returncode
        end = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if end is None:
            return None
        return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status

    def ask_to_end(self) -> None:
        """SIGTERM to the process alone: it ends those that it started as it sees fit."""
        if self._process.returncode is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the process and whatever is left of its group."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def release(self) -> None:
        """Let the kernel forget it, once it has ended and its group is empty."""
        self._process.wait()

    def group(self) -> list[int]:
        """The live members of its group: after its death, what it left behind."""
        members = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                pid = int(entry.name)
                if os.getpgid(pid) == self.pid and is_alive(pid):
                    members.append(pid)
        return members

    def words(self) -> str:
        """What it said when it failed: its `error:` line, else the end of its log."""
        lines = [line for line in logfile.since(self.log, self.log_start) if line.strip()]
        errors = [line for line in lines if line.startswith("error: ")]
        return errors[-1].removeprefix("error: ") if errors else "\n".join(lines[-15:])


def describe_exit(code: int) -> str:
    """`exit code 1`, or `signal SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"signal {signal.Signals(-code).name}"
    return f"signal {-code}"
