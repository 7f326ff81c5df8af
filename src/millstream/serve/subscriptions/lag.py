"""When a client is told how far behind it is, and what is said."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from millstream.serve.views.encoding import Encoding, encode
from millstream.store.views.ring import Ring
from millstream.values.clock import now_ms

DISCONNECT_SECONDS = 3.0  # without any room for a client that asked for `disconnect`
_REPORT_SECONDS = 2.0  # between two reports while a client is slow
_MAX_COUNTED = 1_000  # changes that a filter or policy is evaluated for, only to count them
Clock = Callable[[], float]


class Waiting(NamedTuple):
    """What waits for a client."""

    changes: int
    seconds: float  # since the oldest of them was written


def waiting_changes(ring: Ring, cursor: int, encoding: Encoding) -> Waiting:
    """The changes since `cursor`. Only those that are for the client count, up to 1,000."""
    numbers = range(max(cursor, ring.start), ring.end)
    count = max(0, ring.end - cursor)
    if encoding.is_filtered:
        found = [n for n in numbers[:_MAX_COUNTED] if encoding.concerns(ring[n])]
        numbers, count = range(found[0], ring.end) if found else range(0), len(found)
    if not numbers:
        return Waiting(0, 0.0)
    return Waiting(count, max(0.0, (now_ms() - ring[numbers[0]].timestamp) / 1000))


class LagWatch:
    """Follows one client: a report when it becomes slow, every few seconds, and on recovery."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._is_marked = False  # changes had to wait since the last report
        self._reported_at: float | None = None  # since the client is slow
        self._behind = 0  # at the last report, or when the client became slow

    def mark(self, waiting: Callable[[], Waiting]) -> None:
        """Note that changes wait because the client has no room."""
        if not self._is_marked and self._reported_at is None:
            self._behind = waiting().changes
        self._is_marked = True

    @property
    def is_due(self) -> bool:
        """Whether to report that the client is behind, if it is."""
        if not self._is_marked:
            return False
        last = self._reported_at
        return last is None or self._clock() - last >= _REPORT_SECONDS

    @property
    def has_recovered(self) -> bool:
        """Whether to report that nothing waits any more, if nothing does."""
        return self._reported_at is not None

    def report(self, waiting: Waiting, when_slow: str, capacity: int, replay_limit: int) -> bytes:
        """The fields of a `lag`, as JSON without the braces."""
        growing = waiting.changes > self._behind
        self._is_marked, self._behind = False, waiting.changes
        self._reported_at = self._clock() if waiting.changes else None
        fields = b'"behind":%d,"seconds":%.3f,"growing":%b' % (*waiting, encode(growing))
        warning = warning_of(when_slow, waiting.changes, capacity, replay_limit)
        return fields + (b',"warning":%b' % encode(warning) if warning else b"")


def warning_of(when_slow: str, behind: int, capacity: int, replay_limit: int) -> str:
    """What happens to this client if it stays slow; empty if nothing will."""
    if not behind:
        return ""
    if when_slow == "disconnect":
        return (
            f"you read too slowly: the connection is closed with code 4008 when nothing can be "
            f"sent for {DISCONNECT_SECONDS:g} s, or when more than {capacity} changes wait"
        )
    if behind <= capacity // 2:
        return ""
    if when_slow == "buffer":
        return (
            f"you read too slowly: more than {capacity} waiting changes are read from the log, "
            f"and instead of more than {replay_limit} you get a gap and a snapshot"
        )
    return (
        f"you read too slowly: instead of more than {capacity} waiting changes you get a gap and "
        "a snapshot"
    )
