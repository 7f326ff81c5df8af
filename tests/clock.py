"""A clock that the test advances."""

from __future__ import annotations


class Clock:
    """Tells `now`, in seconds, until the test sets another."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
