"""When the newest events took each step, as far as this collector remembers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from millstream.log.producing.producer import RecordMetadata

_EVENTS = 20_000  # some 5 MB


class Steps:
    """One entry's steps, in milliseconds since the epoch; 0: not yet, or not known."""

    __slots__ = ("deliveries", "journaled_at", "logged_at")

    def __init__(self, journaled_at: int = 0) -> None:
        self.journaled_at = journaled_at
        self.logged_at = 0
        self.deliveries: Sequence[RecordMetadata | None] = ()  # by the events' place in the entry


class Recent:
    """The steps of the newest entries of this collector's journal, of so many events."""

    def __init__(self, most: int = _EVENTS) -> None:
        self._most = most
        self._held = 0
        # In the order in which they came; from a plain dict the oldest one is ever more costly.
        self._steps: OrderedDict[int, Steps] = OrderedDict()

    def __getitem__(self, sequence: int) -> Steps | None:
        return self._steps.get(sequence)

    def journaled(self, sequence: int, at: int) -> None:
        """The entry is on disk."""
        self._add(sequence, Steps(at))

    def logged(self, sequence: int, at: int, deliveries: Sequence[RecordMetadata | None]) -> None:
        """Kafka has the entry's events, at these places; None: not in the log."""
        steps = self._steps.get(sequence) or self._add(sequence, Steps())
        self._held += len(deliveries) - len(steps.deliveries)
        steps.logged_at, steps.deliveries = at, deliveries
        if self._held > self._most:
            self._forget()

    def _add(self, sequence: int, steps: Steps) -> Steps:
        self._steps[sequence] = steps
        self._held += 1
        if self._held > self._most:
            self._forget()
        return steps

    def _forget(self) -> None:
        while self._held > self._most and len(self._steps) > 1:
            _, oldest = self._steps.popitem(last=False)
            self._held -= 1 + len(oldest.deliveries)
