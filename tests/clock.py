"""A clock that the test advances."""

from __future__ import annotations


class Clock:
    """Returns `now`, in seconds, which the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
