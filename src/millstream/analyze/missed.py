"""Which windows an event is in by its time, and which of them it came too late for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from millstream.analyze.plan import ViewPlan, WindowSpec

Window = tuple[int, int]  # start and end, in milliseconds since the epoch


class Windowed(NamedTuple):
    """A view that groups a stream's events by their event time."""

    view: str
    spec: WindowSpec
    lateness_ms: int


def windowed(views: Iterable[ViewPlan], stream: str) -> list[Windowed]:
    """The views in whose windows a stream's events are."""
    return [
        Windowed(view.name, spec, spec.lateness_by_stream.get(stream, spec.lateness_ms))
        for view in views
        if (spec := view.window_spec) is not None
        and (stream == spec.stream or stream in spec.lateness_by_stream)
        and spec.kind != "count"
        and spec.time == "event"
        and spec.size_ms
    ]


def windows(spec: WindowSpec, time: int) -> list[Window]:
    """The windows that an event of that time is in, the oldest first.

    Of a session only its own part: from the event to where the session would end after it.
    """
    if spec.kind == "session":
        return [(time, time + spec.size_ms)]
    newest = time - (time - spec.start_ms) % spec.slide_ms
    starts = range(newest, time - spec.size_ms, -spec.slide_ms)
    return [(start, start + spec.size_ms) for start in reversed(starts)]


def missed(of: Windowed, time: int, watermark: int) -> list[Window]:
    """The windows that were closed when an event came, which the log's watermark then tells."""
    return [
        (start, end) for start, end in windows(of.spec, time) if watermark >= end + of.lateness_ms
    ]
