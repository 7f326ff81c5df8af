"""How long to wait before trying again."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Twice as long after each failure, up to a limit, and never all clients at the same moment."""

    first: float = 0.1  # seconds
    longest: float = 10.0
    chance: Callable[[], float] = random.random

    def after(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row."""
        ceiling: float = min(self.longest, self.first * 2 ** min(failures - 1, 30))
        # At least half, so that a quick coin cannot turn the wait into a busy loop.
        return ceiling * (0.5 + self.chance() / 2)
