"""How far the time of a stream has come, by its events. Knows no Kafka and no clock.

A partition is as far as its newest event, though never further than when that was received: a
clock that is ahead pushes nothing. A stream is as far as the partition that is least far; one that
has brought nothing for a while is left out, and if all are quiet, time goes on by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class PartitionClock:
    """One partition, as far as it was read."""

    position: int = 0  # the next offset to read
    began: int = 0  # the first one that was
    latest: int | None = None  # of event time, never later than received; milliseconds
    newest: int = 0  # when its newest event was received; milliseconds
    heard: float = 0.0  # when it last brought something; by the reader's own clock, in seconds
    is_at_end: bool = False
    in_order: int = 0  # events that no window missed
    late: int = 0
    future: int = 0
    broken: int = 0
    lost: int = 0  # what retention took before it was read

    def saw(self, offset: int, time: int | None, received: int, heard: float) -> None:
        """The next event was read; without a time it tells only that the partition is awake."""
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
    """One stream; its watermarks never go back."""

    idle: float  # seconds
    partitions: dict[int, PartitionClock] = field(default_factory=dict)
    watermark: int = 0  # by event time; milliseconds since the epoch, 0: unknown
    received: int = 0  # the same by stream time, which is when events were received

    def advance(self, now: float, wall: int, *, is_log_there: bool) -> int:
        """The watermark now; `now` in the reader's seconds, `wall` in milliseconds of the day.

        Without the log, silence means nothing: then no partition is idle.
        """
        awake = [
            each
            for each in self.partitions.values()
            if not (is_log_there and each.is_idle(now, self.idle))
        ]
        reached = [each.latest for each in awake if each.latest is not None]
        if awake and len(reached) == len(awake):
            self.watermark = max(self.watermark, min(reached))
        if awake and all(each.newest for each in awake):
            self.received = max(self.received, min(each.newest for each in awake))
        if not awake and self.partitions:
            quiet = wall - round(self.idle * 1000)
            self.watermark, self.received = max(self.watermark, quiet), max(self.received, quiet)
        return self.watermark

    def total(self, count: str) -> int:
        return sum(getattr(each, count) for each in self.partitions.values())


def least(watermarks: Iterable[int]) -> int:
    """The watermark of what is made of several; unknown (0) if one of them is."""
    return min(watermarks, default=0)
