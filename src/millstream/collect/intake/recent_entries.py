"""The steps of the newest entries, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from millstream.log.producing.producer import RecordMetadata

_EVENTS = 20_000  # some 5 MB


class EntrySteps:
    """When one entry took each step, in milliseconds since the epoch; 0: not yet, or unknown."""

    __slots__ = ("deliveries", "journaled_at", "logged_at")

    def __init__(self, journaled_at: int = 0) -> None:
        self.journaled_at = journaled_at
        self.logged_at = 0
        self.deliveries: Sequence[RecordMetadata | None] = ()  # by the event's index


class RecentEntries:
    """The steps of this journal's newest entries, for at most `most` events."""

    def __init__(self, most: int = _EVENTS) -> None:
        self._most = most
        self._held = 0
        # A plain dict would get slower and slower at removing its oldest key.
        self._steps: OrderedDict[int, EntrySteps] = OrderedDict()

    def __getitem__(self, sequence: int) -> EntrySteps | None:
        return self._steps.get(sequence)

    def journaled(self, sequence: int, at: int) -> None:
        """Note that the entry is on disk."""
        self._add(sequence, EntrySteps(at))

    def logged(self, sequence: int, at: int, deliveries: Sequence[RecordMetadata | None]) -> None:
        """Note where Kafka has the entry's events; None: not in the log."""
        steps = self._steps.get(sequence) or self._add(sequence, EntrySteps())
        self._held += len(deliveries) - len(steps.deliveries)
        steps.logged_at, steps.deliveries = at, deliveries
        if self._held > self._most:
            self._forget()

    def _add(self, sequence: int, steps: EntrySteps) -> EntrySteps:
        self._steps[sequence] = steps
        self._held += 1
        if self._held > self._most:
            self._forget()
        return steps

    def _forget(self) -> None:
        while self._held > self._most and len(self._steps) > 1:
            _, oldest = self._steps.popitem(last=False)
            self._held -= 1 + len(oldest.deliveries)
