"""Which windows an event is in by its time, and what of a view it came too late for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from millstream.analyze.plan import ViewPlan, WindowSpec

Window = tuple[int, int]  # start and end, in milliseconds since the epoch


class LatenessRule(NamedTuple):
    """How a view judges who of a stream's events is late."""

    view: str
    spec: WindowSpec | None  # by windows of their event time; None: by that time alone
    lateness_ms: int


def lateness_rules(views: Iterable[ViewPlan], stream: str) -> list[LatenessRule]:
    """The views that leave out a stream's events if they are late."""
    found = []
    for view in views:
        if stream in view.late_by_event_time:
            found.append(LatenessRule(view.name, None, view.late_by_event_time[stream]))
            continue
        for spec in view.late_by_window:
            if stream in spec.lateness_by_stream:
                found.append(LatenessRule(view.name, spec, spec.lateness_by_stream[stream]))
    return found


def windows(spec: WindowSpec, time: int) -> list[Window]:
    """The windows that an event of that time is in, the oldest first.

    Of a session only its own part: from the event to where the session would end after it.
    """
    if spec.kind == "session":
        return [(time, time + spec.size_ms)]
    newest = time - (time - spec.start_ms) % spec.slide_ms
    starts = range(newest, time - spec.size_ms, -spec.slide_ms)
    return [(start, start + spec.size_ms) for start in reversed(starts)]


def missed(of: LatenessRule, time: int, watermark: int) -> list[Window] | None:
    """What was closed when an event came, which the log's watermark then tells; None: nothing.

    Of one that judges by the event's own time it is every row: no window is named.
    """
    closed = watermark - of.lateness_ms
    if of.spec is None:
        return [] if closed >= time else None
    return [window for window in windows(of.spec, time) if closed >= window[1]] or None
