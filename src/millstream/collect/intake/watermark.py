"""A stream's event-time progress, by the events that this collector has sent to Kafka."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping, Sequence
from types import MappingProxyType

from millstream.runtime.measure import Clock, Skews
from millstream.schema.scalars import EARLIEST

_NONE: Mapping[int, int] = MappingProxyType({})


class Watermark:
    """The largest event time so far, but never later than when that event was received.

    So a sender's wrong clock cannot push it ahead: events that are dated more than `ahead` after
    their receipt are ignored. It starts from scratch with each process, which makes fewer events
    late, not more.
    """

    def __init__(self, ahead_ms: int, clock: Clock = time.monotonic) -> None:
        self.at = EARLIEST  # milliseconds since the epoch; EARLIEST: nothing was sent yet
        self.out_of_order = 0  # events dated before the watermark
        self.future = 0  # events dated too far ahead
        self.skews = Skews(clock)  # received minus event time
        self._ahead_ms = ahead_ms

    def latest(self, received_at: int) -> int:
        """The latest valid event time for that time of receipt."""
        return received_at + self._ahead_ms

    def advance(
        self, times: Sequence[int | None], received_at: int, skip: Container[int]
    ) -> Mapping[int, int]:
        """Advance over events, in order; by index, the watermark before each out-of-order one."""
        at, latest = self.at, self.latest(received_at)
        before: dict[int, int] | None = None
        skews = []
        for index, moment in enumerate(times):
            if moment is None or index in skip:
                continue
            skews.append(received_at - moment)
            if moment < at:
                if before is None:
                    before = {}
                before[index] = at
            elif moment > received_at:
                if moment > latest:
                    self.future += 1
                elif received_at > at:
                    at = received_at
            else:
                at = moment
        self.at = at
        self.skews.record(skews)
        if before is None:
            return _NONE
        self.out_of_order += len(before)
        return before
