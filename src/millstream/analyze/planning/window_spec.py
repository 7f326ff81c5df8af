"""What a plan says of a view's windows: which they are, when rows come, when state goes."""

from __future__ import annotations

from datetime import timedelta

from millstream.analyze.lineage.lineage import Traced
from millstream.analyze.plan import WindowKind, WindowSpec
from millstream.analyze.spark.catalyst import Catalyst, items, name_of
from millstream.analyze.windows.count_window import Counted
from millstream.analyze.windows.window import Extent, Grouped, extent
from millstream.log.topic_names import stream_topic
from millstream.pipeline.app import App
from millstream.pipeline.model import View
from millstream.pipeline.trigger import Accumulation
from millstream.syntax.duration import format_duration, milliseconds


def window_spec(traced: Traced, app: App) -> WindowSpec | None:
    """The windows that a result is grouped by; None if there are none by a time of a stream."""
    if traced.counted is not None:
        return _counted(traced.counted, traced, app)
    return _spec(traced, app, traced.window, traced.sources) if traced.window is not None else None


def late_by(traced: Traced, app: App, own: WindowSpec | None) -> tuple[WindowSpec, ...]:
    """The windows that leave out events which are late for them: the result's `own`, and those
    beneath a grouping, a join or a union of what they give."""
    specs = [
        own if window is traced.window else _spec(traced, app, window, sources)
        for window, sources in traced.windows
        if window.filters_late
    ]
    return tuple(spec for spec in specs if spec is not None and spec.size_ms)


def _spec(traced: Traced, app: App, window: Grouped, sources: frozenset[str]) -> WindowSpec | None:
    if window.time is None:
        return None
    streams = [s for s in app.streams.values() if stream_topic(app.name, s.name) in sources]
    if not streams:  # a table's changes, say
        return None
    found = extent(Catalyst.of(traced.frame), window) or Extent(0, 0, 0)
    kind: WindowKind = "sliding" if found.slide < found.size else "tumbling"
    if window.function == "session":
        kind, found = "session", Extent(found.size, found.size, 0)
    lateness = {
        stream.name: milliseconds(stream.lateness) if window.time == "event" else 0
        for stream in streams
    }
    first = streams[0].name
    return WindowSpec(
        kind, found.size, found.slide, found.start, first, lateness[first], window.time, lateness
    )


def by_own_time(traced: Traced, app: App) -> dict[str, int]:
    """The streams whose events are late by their own time, in whatever window; their lateness."""
    return {
        stream.name: milliseconds(stream.lateness)
        for stream in app.streams.values()
        if stream.event_time and stream_topic(app.name, stream.name) in traced.by_own_time
    }


def _counted(counted: Counted, traced: Traced, app: App) -> WindowSpec | None:
    streams = [s for s in app.streams if stream_topic(app.name, s) in traced.sources]
    size, every = counted.window
    return WindowSpec("count", size, every, 0, streams[0], 0, "stream") if streams else None


_ACCUMULATION: dict[Accumulation, str] = {
    "accumulate": "with all that is in by then",
    "discard": "with what is new since the last time",
    "retract": "after a retraction of what was shown before",
}


def trigger(view: View, traced: Traced, output_mode: str) -> str:
    """When rows are given out."""
    text = _given_out(view, traced, output_mode)
    if traced.chooses and output_mode == "update":
        text += (
            "; a row that fulfils the condition on its group no more stays as it was when it did"
        )
    return text


def _given_out(view: View, traced: Traced, output_mode: str) -> str:
    if view.has_output_options:
        return f"{view.trigger}, {_ACCUMULATION[view.accumulation]}"
    if traced.counted is not None:
        return "when a window is full: its row comes once, and does not change"
    if output_mode == "append":
        if traced.window is not None:
            return "once, when Spark's watermark has passed the window's end"
        return "when Spark's watermark says that the row is final"
    if traced.lineage == "revision":
        return "every change: each event, or batch of them, gives its group's row anew"
    return "every event: its rows come at once"


def eviction(traced: Traced, spec: WindowSpec | None, app: App, slack: timedelta) -> str:
    """When state is forgotten, and which events are left out for it."""
    text, lateness = _forgotten(traced, spec, app, slack), by_own_time(traced, app).values()
    if not lateness:
        return text
    late = format_duration(timedelta(milliseconds=max(lateness)))
    return f"{text}; events that come {late} after their own time are left out"


def _forgotten(traced: Traced, spec: WindowSpec | None, app: App, slack: timedelta) -> str:
    if traced.counted is not None:
        held = traced.counted.window.size
        return f"of each group the newest events are kept, {held:,} of them, for as long as it runs"
    if traced.lineage != "revision":
        return _remembered(traced)
    if traced.window is None:
        return "never: groups without a window stay"
    if spec is None:
        return (
            "never: the window is not by the stream's event time or _received_at, so state only"
            " grows"
        )
    longest = max(
        (slack + app.streams[name].ahead + timedelta(milliseconds=late))
        for name, late in spec.lateness_by_stream.items()
    )
    after = "after its end" if spec.kind != "session" else "after its last event and the gap"
    text = f"a window's state goes {format_duration(longest)} {after}, by {spec.time} time"
    if len(spec.lateness_by_stream) > 1:
        text += " of the stream that is least far: one that brings nothing holds it"
    if spec.time == "event" and not by_own_time(traced, app):
        late = format_duration(timedelta(milliseconds=max(spec.lateness_by_stream.values())))
        text += f"; it is closed to late events {late} {after}"
        if not traced.window.filters_late:
            text += (
                ", but who is late cannot be told here: they count as long as the state is there"
            )
    return text


_STATE = {
    "DeduplicateWithinWatermark": "what was seen is remembered for the stream's lateness at least",
    "Deduplicate": "what was seen is remembered for ever, unless it tells the event time",
    "Distinct": "what was seen is remembered for ever, unless it tells the event time",
    "Join": "events wait for their match as long as the join's condition on event time lets them,"
    " without one for ever",
    "TransformWithStateInPySpark": "as the function says",
    "FlatMapGroupsInPandasWithState": "as the function says",
}


def _remembered(traced: Traced) -> str:
    pending = [Catalyst.of(traced.frame).analysed(traced.frame)]
    while pending:
        node = pending.pop()
        children = items(node.children())
        if name_of(node) in _STATE and all(child.isStreaming() for child in children):
            return _STATE[name_of(node)]
        pending.extend(children)
    return "nothing is kept"
