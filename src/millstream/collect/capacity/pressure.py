"""How full the journal is, which decides when senders retry and what is shed."""

from __future__ import annotations

import math

from millstream.collect.journal import Journal
from millstream.runtime.measure import Rate

_SOONEST, _LATEST = 1, 60  # seconds
_STANDSTILL = 5  # seconds to wait while nothing drains: Kafka is away
_ROOMY = 0.9  # a sender that retries should find more room than one message needs


class Pressure:
    """The fill level of the journal, and the wait that follows from it."""

    def __init__(self, journal: Journal, drained: Rate) -> None:
        self._journal = journal
        self._drained = drained

    @property
    def level(self) -> float:
        """From 0, nothing waits for Kafka, to 1, the journal is full."""
        return min(1.0, self._journal.pending_bytes / self._journal.max_bytes)

    def retry_after(self) -> int:
        """Seconds until there is room again, at the current drain rate."""
        excess = self._journal.pending_bytes - _ROOMY * self._journal.max_bytes
        if self._journal.broken or excess <= 0:
            return _SOONEST
        rate = self._drained.per_second()
        if rate <= 0:
            return _STANDSTILL
        return max(_SOONEST, min(_LATEST, math.ceil(excess / rate)))
