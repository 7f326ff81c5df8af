"""View watermark: the stream's watermark at the point of the log up to which a view has read.

We read a stream faster or slower than Spark. A window may be over by the stream's clock while the
log still has events for it that Spark has not read. Its row is not final yet. So a view's watermark
is the stream's watermark as it was when the log ended where Spark is now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from millstream.analyze.watermarks.stream_clock import least
from millstream.analyze.watermarks.tracked_stream import StreamProgress

_REMEMBERED = 1200  # snapshots, one a second: longer than between two checkpoints, as a rule
_SETTLED = 1.0  # seconds by which a view's tasks may be apart
# A real-time query that wrote no row for this many seconds has none to write. The first number
# applies if a row already has the newest event. Otherwise the view may filter it out, or Spark has
# not read it, because it just started or the machine is busy.
_QUIET, _LONG_QUIET = 2.0, 15.0


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """How far a view's query is known to be."""

    read: Mapping[str, Mapping[str, int]]  # topic → partition → offset, from its checkpoint
    received: int  # when the newest event in its rows was received; milliseconds
    quiet: float  # seconds since it wrote its last row
    is_real_time: bool
    is_running: bool
    by_stream_time: bool = False


class _Snapshot(NamedTuple):
    at: float
    stream: StreamProgress


class ViewWatermarks:
    """Computes views' watermarks from the streams' progress of the last minutes."""

    def __init__(self) -> None:
        self._snapshots: dict[str, deque[_Snapshot]] = {}
        self._watermarks: dict[str, int] = {}

    def record(self, now: float, streams: Mapping[str, StreamProgress]) -> None:
        """Remember how far the streams are; `now` in seconds of a monotonic clock."""
        for name, each in streams.items():
            kept = self._snapshots.setdefault(name, deque(maxlen=_REMEMBERED))
            kept.append(_Snapshot(now, each))

    def watermark(
        self, view: str, streams: Iterable[str], progress: QueryProgress, now: float
    ) -> int:
        """The view's watermark, which never goes back; 0: unknown."""
        known = [name for name in streams if name in self._snapshots]
        reached = least(self._reached(name, progress, now) for name in known)
        self._watermarks[view] = max(reached, self._watermarks.get(view, 0))
        return self._watermarks[view]

    def forget(self, view: str) -> None:
        """The view starts again from nothing."""
        self._watermarks.pop(view, None)

    def _reached(self, stream: str, progress: QueryProgress, now: float) -> int:
        for snapshot in reversed(self._snapshots[stream]):
            if _has_read(progress, snapshot, now):
                reached = snapshot.stream
                return reached.received if progress.by_stream_time else reached.watermark
        return 0


def _has_read(progress: QueryProgress, snapshot: _Snapshot, now: float) -> bool:
    """Whether the view has read all that the log had at that moment."""
    stream = snapshot.stream
    read = progress.read.get(stream.topic)
    if read is not None and all(
        read.get(partition, 0) >= offset for partition, offset in stream.positions.items()
    ):
        return True
    if read is not None and not progress.is_real_time:
        return False  # a micro-batch query has read just what it has committed
    # `>`, not `>=`: all events of one request have the same time, and Spark may be amid them.
    if progress.received and progress.received > stream.newest:
        return snapshot.at <= now - _SETTLED
    quiet = _QUIET if 0 < stream.newest <= progress.received else _LONG_QUIET
    return progress.is_running and progress.quiet >= quiet and snapshot.at <= now - quiet
