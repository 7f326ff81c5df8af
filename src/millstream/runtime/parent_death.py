"""Makes a child process end when its parent ends, in any way."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> Callable[[], None]:
    """A `preexec_fn` that makes the kernel kill the child when its parent dies (on Linux).

    With SIGKILL, so that a restarted parent finds ports and locks free.
    """
    parent = os.getpid()
    prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)

    def set_death_signal() -> None:
        if prctl is None:
            return
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the call
            os._exit(1)

    return set_death_signal
