"""Which windows an event is in, by its time."""

from __future__ import annotations

from millstream.analyze.plan import WindowSpec

Window = tuple[int, int]  # start and end, in milliseconds since the epoch


def assign_windows(spec: WindowSpec, time: int) -> list[Window]:
    """The windows that an event of that time is in, the oldest first.

    Of a session only its own part: from the event to where the session would end after it.
    """
    if spec.kind == "session":
        return [(time, time + spec.size_ms)]
    newest = time - (time - spec.start_ms) % spec.slide_ms
    starts = range(newest, time - spec.size_ms, -spec.slide_ms)
    return [(start, start + spec.size_ms) for start in reversed(starts)]
