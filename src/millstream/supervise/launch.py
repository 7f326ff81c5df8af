"""Script of `Child`: makes the process end with its parent, then executes the given command.

It is a script and not a `preexec_fn`, because the supervisor has threads: only async-safe code may
run between its fork and exec.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):  # the parent died before the call of prctl
        sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"error: cannot run {command[0]}: {error.strerror}; correct the command")


if __name__ == "__main__":
    main()
