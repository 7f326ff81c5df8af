"""The topics of a pipeline: which ones there are, how they are configured, and their creation."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace
from datetime import timedelta

from millstream.log.settings import LogSettings
from millstream.log.topic_names import (
    audit_topic,
    changes_topic,
    edition_topic,
    keys_topic,
    late_topic,
    ledger_topic,
    output_state_topic,
    rebuilds_topic,
    rejected_topic,
    schemas_topic,
    seen_topic,
    stream_topic,
    view_topic,
    views_topic,
)
from millstream.log.topics import Topic, create_topics, recreate
from millstream.pipeline.app import App
from millstream.pipeline.model import View
from millstream.syntax.duration import milliseconds, parse_duration

_AUDIT_KEPT = timedelta(days=1)
_FOR_EVER = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "message.timestamp.type": "CreateTime",
}
_LARGEST_REJECTED = 64 << 20  # bytes of a record; Kafka takes no request of over 100 MB
_SEEN_MARGIN = timedelta(minutes=10)  # beyond the window: clocks differ, and collectors start late


def topics(app: App, log: LogSettings) -> Iterator[Topic]:
    """Every topic of a pipeline."""
    for stream in app.streams.values():
        kept = _retained(stream.retention)
        for name in (stream_topic, late_topic):
            yield Topic(name(app.name, stream.name), log.partitions, kept)
        # What is too large for a stream is kept as well.
        large = {**kept, "max.message.bytes": str(_LARGEST_REJECTED)}
        yield Topic(rejected_topic(app.name, stream.name), log.partitions, large)
        if stream.remembers_ids:
            seen = _retained(stream.dedup + _SEEN_MARGIN)
            yield Topic(seen_topic(app.name, stream.name), 1, seen)
    for view in app.views.values():
        yield from _of_view(app.name, view, log)
    yield Topic(audit_topic(app.name), 1, _retained(_AUDIT_KEPT))
    yield Topic(views_topic(app.name), 1, _compacted(timedelta(0)))
    yield Topic(rebuilds_topic(app.name), 1, _compacted(timedelta(0)))
    yield Topic(keys_topic(app.name), 1, _compacted(timedelta(0)))
    yield Topic(schemas_topic(app.name), 1, _compacted(timedelta(0)))


def event_topics(app: App) -> list[str]:
    """Where collectors put events: each stream's topic, and that of what it rejected."""
    of = (stream_topic, rejected_topic)
    return [topic(app.name, name) for name in app.streams for topic in of]


def written_topic(app: str, view: View) -> str:
    """The topic that the view's query writes to."""
    return (changes_topic if view.has_output_options else view_topic)(app, view.name)


def ensure_topics(app: App, log: LogSettings, names: Container[str] | None = None) -> None:
    """Create missing topics and correct the retention of existing ones; processes may race.

    Only the topics with these `names`, if they are given.
    """
    create_topics(log, [each for each in topics(app, log) if names is None or each.name in names])


def recreate_topic(app: App, log: LogSettings, view_name: str, edition: int = 0) -> str:
    """Make what a view's query writes to anew, empty and with another id, which is returned.

    Where its rows are shown otherwise, the topic with those too, and last: whoever shows them until
    then shows them anew after that.
    """
    view = app.views[view_name]
    shown = replace(_view(app.name, view, log), name=edition_topic(app.name, view_name, edition))
    if not view.has_output_options:
        return recreate(shown, log)
    if edition:
        recreate(_panes(app.name, view, edition), log)
    written = recreate(_changes(app.name, view, log, edition), log)
    recreate(shown, log)
    return written


def _of_view(app: str, view: View, log: LogSettings) -> Iterator[Topic]:
    yield _view(app, view, log)
    if view.has_output_options:
        yield _changes(app, view, log)
    if view.ledger:
        yield Topic(ledger_topic(app, view.name), log.partitions, _FOR_EVER)
    if view.has_output_options or view.ledger:
        yield _panes(app, view)


def _view(app: str, view: View, log: LogSettings) -> Topic:
    config = (
        _retained(parse_duration(log.retention))
        if view.key is None or view.accumulation == "discard"  # what is new adds up only as a whole
        else _compacted(parse_duration(log.history))
    )
    return Topic(view_topic(app, view.name), log.partitions, config)


def _changes(app: str, view: View, log: LogSettings, edition: int = 0) -> Topic:
    config = _compacted(parse_duration(log.history))
    return Topic(changes_topic(app, view.name, edition), log.partitions, config)


def _panes(app: str, view: View, edition: int = 0) -> Topic:
    return Topic(output_state_topic(app, view.name, edition), 1, _compacted(timedelta(0)))


def _retained(kept: timedelta) -> dict[str, str]:
    # Only whole segments are deleted: with ten of them, what is kept is at most a tenth too much.
    segment = min(max(kept / 10, timedelta(minutes=1)), timedelta(days=1))
    return {
        "cleanup.policy": "delete",
        "retention.ms": str(milliseconds(kept)),
        "segment.ms": str(milliseconds(segment)),
        "message.timestamp.type": "CreateTime",
    }


def _compacted(history: timedelta) -> dict[str, str]:
    # The segment that is written to is never compacted: small ones keep a busy table's topic small.
    return {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": str(milliseconds(history)),
        "segment.ms": str(milliseconds(max(history, timedelta(minutes=10)))),
        "segment.bytes": str(16 << 20),
        "min.cleanable.dirty.ratio": "0.3",
        "message.timestamp.type": "CreateTime",
    }
