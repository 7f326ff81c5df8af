"""How much of its streams' time a view has in it.

The timekeeper reads a stream in its own pace, and Spark in another: a window that is over in the
stream may have events in the log that the view has not taken in yet. Its row is no more final than
before, so a view's watermark is the stream's as it was when the log was as far as Spark is now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from millstream.analyze.watermarks.late_events import StreamProgress
from millstream.analyze.watermarks.stream_clock import least

_REMEMBERED = 1200  # looks, one a second: longer than between two checkpoints, as a rule
_SETTLED = 1.0  # seconds that a view's tasks may be apart
# Seconds without a row, after which a real-time query has none to write: if the newest event is in
# one already, and if not. Then the view may leave it out, or Spark may not have got to it, because
# it only just started or the machine is busy.
_QUIET, _LONG_QUIET = 2.0, 15.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a view's query is known to be."""

    read: Mapping[str, Mapping[str, int]]  # topic → partition → offset, as its checkpoint says
    received: int  # when the newest event in its rows was received; milliseconds
    quiet: float  # seconds since it wrote its last row
    is_real_time: bool
    is_running: bool
    by_stream_time: bool = False


class _Look(NamedTuple):
    at: float
    reached: StreamProgress


class ViewWatermarks:
    """Remembers how far the streams were, for some minutes."""

    def __init__(self) -> None:
        self._looks: dict[str, deque[_Look]] = {}
        self._views: dict[str, int] = {}

    def note(self, now: float, reached: Mapping[str, StreamProgress]) -> None:
        """How far the streams are now; `now` in seconds that only grow."""
        for name, each in reached.items():
            self._looks.setdefault(name, deque(maxlen=_REMEMBERED)).append(_Look(now, each))

    def watermark(self, view: str, streams: Iterable[str], progress: Progress, now: float) -> int:
        """The view's watermark, which never goes back; 0: unknown."""
        known = [name for name in streams if name in self._looks]
        reached = least(self._reached(name, progress, now) for name in known)
        self._views[view] = max(reached, self._views.get(view, 0))
        return self._views[view]

    def forget(self, view: str) -> None:
        """The view begins anew."""
        self._views.pop(view, None)

    def _reached(self, stream: str, progress: Progress, now: float) -> int:
        for look in reversed(self._looks[stream]):
            if _has(progress, look, now):
                reached = look.reached
                return reached.received if progress.by_stream_time else reached.watermark
        return 0


def _has(progress: Progress, look: _Look, now: float) -> bool:
    """Whether the view has in it all that the log had at that look."""
    read = progress.read.get(look.reached.topic)
    if read is not None and all(
        read.get(partition, 0) >= offset for partition, offset in look.reached.positions.items()
    ):
        return True
    if read is not None and not progress.is_real_time:
        return False  # what it has committed is all that it has
    # Not of the same moment: the events of one post have one, and it may be in the midst of them.
    if progress.received and progress.received > look.reached.newest:
        return look.at <= now - _SETTLED
    quiet = _QUIET if 0 < look.reached.newest <= progress.received else _LONG_QUIET
    return progress.is_running and progress.quiet >= quiet and look.at <= now - quiet
