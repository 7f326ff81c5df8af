"""The topics of a pipeline: their names and configuration, and their creation."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace
from datetime import timedelta

from millstream.log.settings import LogSettings
from millstream.log.topic_names import (
    audit_topic,
    changes_topic,
    edition_topic,
    groups_topic,
    keys_topic,
    late_topic,
    ledger_topic,
    output_state_topic,
    rebuilds_topic,
    rejected_topic,
    schemas_topic,
    seen_topic,
    stream_topic,
    undelivered_topic,
    view_topic,
    views_topic,
)
from millstream.log.topics import Topic, create_topics, recreate
from millstream.pipeline.app import App
from millstream.pipeline.model import View
from millstream.syntax.duration import milliseconds, parse_duration

_AUDIT_RETENTION = timedelta(days=1)
_KEEP_FOREVER = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "message.timestamp.type": "CreateTime",
}
_LARGEST_REJECTED = 64 << 20  # bytes of a record; Kafka accepts no request over 100 MB
_SEEN_MARGIN = timedelta(minutes=10)  # beyond `dedup`: clocks differ, and collectors start late


def topics(app: App, log: LogSettings) -> Iterator[Topic]:
    """Every topic of a pipeline."""
    for stream in app.streams.values():
        kept = _retained(stream.retention)
        for name in (stream_topic, late_topic):
            yield Topic(name(app.name, stream.name), log.partitions, kept)
        # Events that are too large for the stream are stored here as well.
        large = {**kept, "max.message.bytes": str(_LARGEST_REJECTED)}
        yield Topic(rejected_topic(app.name, stream.name), log.partitions, large)
        if stream.remembers_ids:
            seen = _retained(stream.dedup + _SEEN_MARGIN)
            yield Topic(seen_topic(app.name, stream.name), 1, seen)
    for view in app.views.values():
        yield from _view_topics(app.name, view, log)
    yield Topic(audit_topic(app.name), 1, _retained(_AUDIT_RETENTION))
    yield Topic(views_topic(app.name), 1, _compacted(timedelta(0)))
    yield Topic(rebuilds_topic(app.name), 1, _compacted(timedelta(0)))
    yield Topic(keys_topic(app.name), 1, _compacted(timedelta(0)))
    yield Topic(schemas_topic(app.name), 1, _compacted(timedelta(0)))
    yield Topic(groups_topic(app.name), 1, _compacted(timedelta(0)))


def create_undelivered_topic(app: str, group: str, log: LogSettings) -> None:
    """Create the topic of a group's messages that were set aside, unless it exists. Blocks."""
    kept = _compacted(timedelta(0))
    create_topics(log, [Topic(undelivered_topic(app, group), 1, kept)])


def event_topics(app: App) -> list[str]:
    """The topics that collectors write events to: each stream's own and its rejected topic."""
    of = (stream_topic, rejected_topic)
    return [topic(app.name, name) for name in app.streams for topic in of]


def written_topic(app: str, view: View) -> str:
    """The topic that the view's query writes to."""
    return (changes_topic if view.has_output_options else view_topic)(app, view.name)


def ensure_topics(app: App, log: LogSettings, names: Container[str] | None = None) -> None:
    """Create missing topics and update the retention of existing ones; processes may race.

    If `names` is given, only those topics.
    """
    create_topics(log, [each for each in topics(app, log) if names is None or each.name in names])


def recreate_topic(app: App, log: LogSettings, view_name: str, edition: int = 0) -> str:
    """Delete and create again the topics that a view's query writes to; returns the new topic id.

    The topic with the output rows comes last: when it changes, the process that outputs rows starts
    from scratch.
    """
    view = app.views[view_name]
    output = replace(_view(app.name, view, log), name=edition_topic(app.name, view_name, edition))
    if not view.has_output_options:
        return recreate(output, log)
    if edition:
        recreate(_panes(app.name, view, edition), log)
    written = recreate(_changes(app.name, view, log, edition), log)
    recreate(output, log)
    return written


def _view_topics(app: str, view: View, log: LogSettings) -> Iterator[Topic]:
    yield _view(app, view, log)
    if view.has_output_options:
        yield _changes(app, view, log)
    if view.ledger:
        yield Topic(ledger_topic(app, view.name), log.partitions, _KEEP_FOREVER)
    if view.has_output_options or view.ledger:
        yield _panes(app, view)


def _view(app: str, view: View, log: LogSettings) -> Topic:
    config = (
        _retained(parse_duration(log.retention))
        if view.key is None or view.accumulation == "discard"  # all rows are needed for the sum
        else _compacted(parse_duration(log.history))
    )
    return Topic(view_topic(app, view.name), log.partitions, config)


def _changes(app: str, view: View, log: LogSettings, edition: int = 0) -> Topic:
    config = _compacted(parse_duration(log.history))
    return Topic(changes_topic(app, view.name, edition), log.partitions, config)


def _panes(app: str, view: View, edition: int = 0) -> Topic:
    return Topic(output_state_topic(app, view.name, edition), 1, _compacted(timedelta(0)))


def _retained(kept: timedelta) -> dict[str, str]:
    # Kafka deletes whole segments: with ten of them, at most a tenth too much is kept.
    segment = min(max(kept / 10, timedelta(minutes=1)), timedelta(days=1))
    return {
        "cleanup.policy": "delete",
        "retention.ms": str(milliseconds(kept)),
        "segment.ms": str(milliseconds(segment)),
        "message.timestamp.type": "CreateTime",
    }


def _compacted(history: timedelta) -> dict[str, str]:
    # Kafka never compacts the active segment: small segments keep a busy table's topic small.
    return {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": str(milliseconds(history)),
        "segment.ms": str(milliseconds(max(history, timedelta(minutes=10)))),
        "segment.bytes": str(16 << 20),
        "min.cleanable.dirty.ratio": "0.3",
        "message.timestamp.type": "CreateTime",
    }
