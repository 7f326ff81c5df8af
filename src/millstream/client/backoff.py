"""Waiting times between retries."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubles after each failure, up to a limit; random, so that clients do not retry together."""

    first: float = 0.1  # seconds
    longest: float = 10.0
    jitter: Callable[[], float] = random.random

    def after(self, failures: int) -> float:
        """Seconds to wait after this number of failures in a row."""
        ceiling: float = min(self.longest, self.first * 2 ** min(failures - 1, 30))
        # At least half, so that retries are never too fast.
        return ceiling * (0.5 + self.jitter() / 2)
