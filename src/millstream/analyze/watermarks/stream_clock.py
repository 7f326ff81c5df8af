"""Stream clock: how far the time of a stream has advanced, by its events. Without Kafka.

A partition's clock is the time of its newest event, but never later than when that was received: a
sender's clock that is ahead advances nothing. A stream's clock is that of its slowest partition.
A partition without events for a while is left out. If all are idle, time advances by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class PartitionClock:
    """One partition, up to where it was read, and counts of its events."""

    position: int = 0  # the next offset to read
    began: int = 0  # the first offset that was read
    latest: int | None = None  # event time, never later than received; milliseconds
    newest: int = 0  # when its newest event was received; milliseconds
    heard: float = 0.0  # when it last had an event; by the reader's own clock, in seconds
    is_at_end: bool = False
    in_order: int = 0  # events that were not too late for any window
    late: int = 0
    future: int = 0
    broken: int = 0
    lost: int = 0  # events that retention deleted before they were read

    def advance(self, offset: int, time: int | None, received: int, heard: float) -> None:
        """The next event was read. Without a time it only shows that the partition is not idle."""
        self.lost += offset - self.position
        self.position = offset + 1
        self.heard, self.is_at_end = heard, False
        self.newest = max(self.newest, received)
        if time is not None:
            reached = min(time, received)
            self.latest = reached if self.latest is None else max(self.latest, reached)

    def is_idle(self, now: float, idle: float) -> bool:
        return self.is_at_end and now - self.heard >= idle


@dataclass(slots=True)
class StreamClock:
    """One stream. Its watermarks never go back."""

    idle: float  # seconds
    partitions: dict[int, PartitionClock] = field(default_factory=dict)
    watermark: int = 0  # by event time; milliseconds since the epoch, 0: unknown
    received: int = 0  # the same by stream time, which is when events were received

    def advance(self, now: float, wall: int, *, is_log_there: bool) -> int:
        """The watermark now. `now` is in the reader's seconds, `wall` in milliseconds of the day.

        While Kafka does not answer, no partition counts as idle.
        """
        active = [
            each
            for each in self.partitions.values()
            if not (is_log_there and each.is_idle(now, self.idle))
        ]
        reached = [each.latest for each in active if each.latest is not None]
        if active and len(reached) == len(active):
            self.watermark = max(self.watermark, min(reached))
        if active and all(each.newest for each in active):
            self.received = max(self.received, min(each.newest for each in active))
        if not active and self.partitions:
            quiet = wall - round(self.idle * 1000)
            self.watermark, self.received = max(self.watermark, quiet), max(self.received, quiet)
        return self.watermark

    def total(self, count: str) -> int:
        return sum(getattr(each, count) for each in self.partitions.values())


def least(watermarks: Iterable[int]) -> int:
    """The watermark of several streams together; unknown (0) if one of them is unknown."""
    return min(watermarks, default=0)
