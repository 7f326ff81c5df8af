"""The windows of a view in its plan: which they are, when rows come, when state is deleted."""

from __future__ import annotations

from datetime import timedelta

from millstream.analyze.lineage.lineage import TracedQuery
from millstream.analyze.spark.catalyst import Catalyst, items, name_of, nodes
from millstream.analyze.windows.count_rewrite import CountWindowPlan
from millstream.analyze.windows.count_window import CountWindowSpec
from millstream.analyze.windows.grouped_window import GroupedWindow, extent
from millstream.analyze.windows.window_spec import Extent, WindowSpec
from millstream.log.topic_names import stream_topic
from millstream.pipeline.app import App
from millstream.pipeline.model import View
from millstream.pipeline.trigger import Accumulation
from millstream.syntax.duration import format_duration, milliseconds


def window_spec(traced: TracedQuery, app: App) -> WindowSpec | None:
    """The windows that a result is grouped by; None without windows, or not by a stream's time."""
    if traced.counted is not None:
        return _count_window(traced.counted, traced, app)
    return _spec(traced, app, traced.window, traced.sources) if traced.window is not None else None


def late_by_window(traced: TracedQuery, app: App, own: WindowSpec | None) -> tuple[WindowSpec, ...]:
    """All windows that leave out late events: the result's `own`, and those of subqueries."""
    specs = [
        own if window is traced.window else _spec(traced, app, window, sources)
        for window, sources in traced.windows
        if window.filters_late
    ]
    return tuple(spec for spec in specs if spec is not None and spec.has_fixed_size)


def _spec(
    traced: TracedQuery, app: App, window: GroupedWindow, sources: frozenset[str]
) -> WindowSpec | None:
    if window.time is None:
        return None
    streams = [s for s in app.streams.values() if stream_topic(app.name, s.name) in sources]
    if not streams:  # the changes of a view, for example
        return None
    found = extent(Catalyst.of(traced.frame), window) or Extent(0, 0, 0)
    lateness = {
        stream.name: milliseconds(stream.lateness) if window.time == "event" else 0
        for stream in streams
    }
    return window.kind.of(found, streams[0].name, window.time, lateness)


def late_by_event_time(traced: TracedQuery, app: App) -> dict[str, int]:
    """The streams whose events are late by their event time alone, with their lateness in ms."""
    return {
        stream.name: milliseconds(stream.lateness)
        for stream in app.streams.values()
        if stream.event_time and stream_topic(app.name, stream.name) in traced.late_by_event_time
    }


def _count_window(counted: CountWindowPlan, traced: TracedQuery, app: App) -> WindowSpec | None:
    streams = [s for s in app.streams if stream_topic(app.name, s) in traced.sources]
    size, every = counted.window
    return CountWindowSpec(streams[0], "stream", {}, size, every) if streams else None


_ACCUMULATION: dict[Accumulation, str] = {
    "accumulate": "with all events so far",
    "discard": "with what is new since the last row",
    "retract": "after a retraction of the last row",
}


def describe_trigger(view: View, traced: TracedQuery, output_mode: str) -> str:
    """When rows are shown."""
    text = _trigger(view, traced, output_mode)
    if traced.filters_groups and output_mode == "update":
        text += "; a row whose group no longer meets HAVING stays as it last was"
    return text


def _trigger(view: View, traced: TracedQuery, output_mode: str) -> str:
    if view.has_output_options:
        return f"{view.trigger}, {_ACCUMULATION[view.accumulation]}"
    if traced.window_kind is not None and traced.window_kind.trigger:
        return traced.window_kind.trigger
    if output_mode == "append":
        if traced.window is not None:
            return "once, when Spark's watermark has passed the window's end"
        return "when Spark's watermark says that the row is final"
    if traced.lineage == "revision":
        return "every change: each event, or batch of events, updates its group's row"
    return "every event: its rows come at once"


def describe_eviction(
    traced: TracedQuery, spec: WindowSpec | None, app: App, slack: timedelta
) -> str:
    """When state is deleted, and which events are left out because of that."""
    text, lateness = _eviction(traced, spec, app, slack), late_by_event_time(traced, app).values()
    if not lateness:
        return text
    late = format_duration(timedelta(milliseconds=max(lateness)))
    return f"{text}; events that come {late} after their event time are left out"


def _eviction(traced: TracedQuery, spec: WindowSpec | None, app: App, slack: timedelta) -> str:
    if traced.counted is not None:
        return f"never: the newest {traced.counted.window.size:,} events of each group are kept"
    if traced.lineage != "revision":
        return _other_state(traced)
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
    kept = f"{format_duration(longest)} {spec.after_end}"
    text = f"a window's state is deleted {kept}, by {spec.time} time"
    if len(spec.lateness_by_stream) > 1:
        text += " of the slowest stream: a stream without events holds it back"
    if spec.time == "event" and not late_by_event_time(traced, app):
        late = format_duration(timedelta(milliseconds=max(spec.lateness_by_stream.values())))
        text += f"; it is closed to late events {late} {spec.after_end}"
        if not traced.window.filters_late:
            text += ", but late events are not recognised here: they count while the state exists"
    return text


_STATE = {
    "DeduplicateWithinWatermark": "seen values are kept for the stream's lateness at least",
    "Deduplicate": "seen values are kept forever, unless they include the event time",
    "Distinct": "seen values are kept forever, unless they include the event time",
    "Join": "events wait for a match as long as the join's condition on event time allows, without"
    " such a condition forever",
    "TransformWithStateInPySpark": "as the function says",
    "FlatMapGroupsInPandasWithState": "as the function says",
}


def _other_state(traced: TracedQuery) -> str:
    for node in nodes(Catalyst.of(traced.frame).analysed(traced.frame)):
        text = _STATE.get(name_of(node), "")
        if text and all(child.isStreaming() for child in items(node.children())):
            return text
    return "nothing is kept"
