"""One running process, its process group and its log."""

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
    """A process in its own session, so that the terminal's Ctrl-C reaches only the supervisor.

    It must be created in a thread that lives as long as the supervisor: the kernel ends a child
    with the thread that created it.
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
        """Its exit code (negative: the signal that ended it), or None while it runs.

        It is not reaped before `reap`. Until then no other process can get its pid or group, and
        `kill` cannot hit another process.
        """
        if self._process.returncode is not None:
            return self._process.returncode
        end = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if end is None:
            return None
        return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send the signal to the process alone: it stops its own children."""
        if self._process.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL to the process and what is left of its group."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Reap it, after it has ended and its group is empty."""
        self._process.wait()

    def group_members(self) -> list[int]:
        """The pids of its group that are alive; after its death, the children that it left."""
        members = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                pid = int(entry.name)
                if os.getpgid(pid) == self.pid and is_alive(pid):
                    members.append(pid)
        return members

    def last_error(self) -> str:
        """Its `error:` line, else the end of its log."""
        lines = [line for line in logfile.lines_since(self.log, self.log_start) if line.strip()]
        errors = [line for line in lines if line.startswith("error: ")]
        return errors[-1].removeprefix("error: ") if errors else "\n".join(lines[-15:])


def describe_exit(code: int) -> str:
    """`exit code 1`, or `signal SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"signal {signal.Signals(-code).name}"
    return f"signal {-code}"
