"""Which topics a pipeline has, what they are called, and how they are made."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from millstream.errors import LogError
from millstream.log.connection import admin
from millstream.log.settings import LogSettings
from millstream.pipeline.app import App, View
from millstream.syntax.duration import parse_duration

_SECONDS = 30.0
_AUDIT_KEPT = timedelta(days=1)
_FOR_EVER = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "message.timestamp.type": "CreateTime",
}
_LARGEST_REJECTED = 64 << 20  # bytes of a record; Kafka takes no request of over 100 MB
_PUT_RIGHT = ("cleanup.policy", "max.message.bytes", "min.compaction.lag.ms", "retention.ms")
_SEEN_MARGIN = timedelta(minutes=10)  # beyond the window: clocks differ, and collectors start late


def stream_topic(app: str, name: str) -> str:
    return f"{app}.stream.{name}"


def view_topic(app: str, name: str) -> str:
    return f"{app}.view.{name}"


def changes_topic(app: str, name: str, edition: int = 0) -> str:
    """Compacted: what the query of a view gives whose rows are shown otherwise."""
    return _numbered(f"{app}.changes.{name}", edition)


def panes_topic(app: str, name: str, edition: int = 0) -> str:
    """Compacted: which rows of the view were shown, and how far that has got.

    Which of them were entered into its ledger, and as what, is in the first edition's for ever.
    """
    return _numbered(f"{app}.panes.{name}", edition)


def ledger_topic(app: str, name: str) -> str:
    """The view's ledger: kept for ever, because it is right only as a whole."""
    return f"{app}.ledger.{name}"


def written_topic(app: str, view: View) -> str:
    """The topic that the view's query writes to."""
    return (changes_topic if view.has_panes else view_topic)(app, view.name)


def app_of_stream(topic: str, name: str) -> str:
    """The pipeline whose stream of that name has this topic."""
    return topic.removesuffix(stream_topic("", name))


def rejected_topic(app: str, name: str) -> str:
    return f"{app}.rejected.{name}"


def late_topic(app: str, name: str) -> str:
    return f"{app}.late.{name}"


def audit_topic(app: str) -> str:
    return f"{app}.audit"


def views_topic(app: str) -> str:
    """Compacted: a `ViewDescription` by view name."""
    return f"{app}.views"


def rebuilds_topic(app: str) -> str:
    """Compacted: what is wished of a view that is computed anew, by view name, until it is done."""
    return f"{app}.rebuilds"


def edition_topic(app: str, name: str, edition: int) -> str:
    """The topic of a view's rows; each time that it is computed anew beside the one, another."""
    return _numbered(view_topic(app, name), edition)


def _numbered(first: str, edition: int) -> str:
    return f"{first}.{edition}" if edition else first


def edition_of(topic: str) -> int:
    """Which edition of a view its topic holds."""
    last = topic.rpartition(".")[2]
    return int(last) if last.isdigit() else 0


def editions(app: str, name: str, known: Iterable[str], but: Iterable[int] = ()) -> set[str]:
    """The `known` topics that belong to editions of a view, except what its ledger rests on."""
    found, kept = set[str](), set(but)
    for first in (view_topic(app, name), changes_topic(app, name), panes_topic(app, name)):
        found |= {each for each in known if each == first or each.startswith(f"{first}.")}
    return {each for each in found - {panes_topic(app, name)} if edition_of(each) not in kept}


def seen_topic(app: str, name: str) -> str:
    """The senders' ids of the stream's events, for as long as a retry is recognised."""
    return f"{app}.seen.{name}"


def schemas_topic(app: str) -> str:
    """Compacted: the schema that each stream had at the last start, by stream name."""
    return f"{app}.schemas"


def keys_topic(app: str) -> str:
    """Compacted: the keys that the collectors of one cluster share; the first one counts."""
    return f"{app}.keys"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it must be."""

    name: str
    partitions: int
    config: dict[str, str]


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


def ensure_topics(app: App, log: LogSettings, names: Container[str] | None = None) -> None:
    """Create what is missing and put right what is kept how; many processes may do it at once.

    Only the topics with these `names`, if they are given.
    """
    client = admin(log)
    wanted = [topic for topic in topics(app, log) if names is None or topic.name in names]
    made = _create(client, wanted, log)
    _await_known(client, made)
    if older := [topic for topic in wanted if topic.name not in made]:
        _put_right(client, older)


def topic_ids(log: LogSettings, names: Iterable[str]) -> dict[str, str]:
    """The id of each of these topics that exists."""
    return _ids(admin(log), list(names))


def known_topics(log: LogSettings) -> set[str]:
    """The names of all topics that can be used; LogError if Kafka does not answer."""
    return _known(admin(log))


def recreate_topic(app: App, log: LogSettings, view_name: str, edition: int = 0) -> str:
    """Make what a view's query writes to anew, empty and with another id, which is returned.

    Where its rows are shown otherwise, the topic with those too, and last: whoever shows them until
    then shows them anew after that.
    """
    view = app.views[view_name]
    shown = replace(_view(app.name, view, log), name=edition_topic(app.name, view_name, edition))
    if not view.has_panes:
        return _recreate(shown, log)
    if edition:
        _recreate(_panes(app.name, view, edition), log)
    written = _recreate(_changes(app.name, view, log, edition), log)
    _recreate(shown, log)
    return written


def _recreate(topic: Topic, log: LogSettings) -> str:
    client = admin(log)
    old = _ids(client, [topic.name]).get(topic.name)
    if old is not None:
        _settle(client.delete_topics([topic.name]), "delete", {KafkaError.UNKNOWN_TOPIC_OR_PART})
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        # "Already exists" may be the old one, still on its way out: so ask which one is there.
        _create(client, [topic], log)
        if (now := _ids(client, [topic.name]).get(topic.name, old)) not in (old, None):
            return str(now)
        time.sleep(0.05)
    raise LogError(
        f"topic {topic.name} was deleted, but Kafka did not make it anew in {_SECONDS:g} s"
    )


def delete_topics(log: LogSettings, names: Iterable[str]) -> None:
    """Delete those of the topics that exist."""
    client = admin(log)  # answers come as long as it lives
    if names := list(names):
        _settle(client.delete_topics(names), "delete", {KafkaError.UNKNOWN_TOPIC_OR_PART})


def _of_view(app: str, view: View, log: LogSettings) -> Iterator[Topic]:
    yield _view(app, view, log)
    if view.has_panes:
        yield _changes(app, view, log)
    if view.ledger:
        yield Topic(ledger_topic(app, view.name), log.partitions, _FOR_EVER)
    if view.has_panes or view.ledger:
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
    return Topic(panes_topic(app, view.name, edition), 1, _compacted(timedelta(0)))


def _retained(kept: timedelta) -> dict[str, str]:
    # Only whole segments are deleted: with ten of them, what is kept is at most a tenth too much.
    segment = min(max(kept / 10, timedelta(minutes=1)), timedelta(days=1))
    return {
        "cleanup.policy": "delete",
        "retention.ms": _milliseconds(kept),
        "segment.ms": _milliseconds(segment),
        "message.timestamp.type": "CreateTime",
    }


def _compacted(history: timedelta) -> dict[str, str]:
    # The segment that is written to is never compacted: small ones keep a busy table's topic small.
    return {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": _milliseconds(history),
        "segment.ms": _milliseconds(max(history, timedelta(minutes=10))),
        "segment.bytes": str(16 << 20),
        "min.cleanable.dirty.ratio": "0.3",
        "message.timestamp.type": "CreateTime",
    }


def _milliseconds(duration: timedelta) -> str:
    return str(duration // timedelta(milliseconds=1))


def _create(client: AdminClient, wanted: list[Topic], log: LogSettings) -> set[str]:
    existing = _known(client)
    missing = [
        NewTopic(
            topic.name,
            num_partitions=topic.partitions,
            replication_factor=log.replication,
            config={**topic.config, "min.insync.replicas": str(max(1, log.replication - 1))},
        )
        for topic in wanted
        if topic.name not in existing
    ]
    if missing:
        _settle(client.create_topics(missing), "create", {KafkaError.TOPIC_ALREADY_EXISTS})
    return {topic.topic for topic in missing}


def _await_known(client: AdminClient, names: set[str]) -> None:
    # A topic is made by the controller; brokers hear of it a moment later.
    deadline = time.monotonic() + _SECONDS
    while unknown := names - _known(client):
        if time.monotonic() > deadline:
            raise LogError(f"Kafka made topic {min(unknown)}, but does not serve it")
        time.sleep(0.01)


def _known(client: AdminClient) -> set[str]:
    try:
        found = client.list_topics(timeout=_SECONDS).topics
    except KafkaException as failure:
        raise LogError(
            f"cannot ask Kafka for its topics: {failure.args[0].str()}",
            remedy="see that it runs and that log.bootstrap and log.security are right",
        ) from failure
    return {
        name
        for name, topic in found.items()
        if topic.partitions and all(p.leader >= 0 for p in topic.partitions.values())
    }


def _put_right(client: AdminClient, wanted: list[Topic]) -> None:
    if not wanted:  # Kafka's client refuses to ask about nothing
        return
    # Only what changes the meaning of a topic; an operator's other settings are theirs.
    resources = {ConfigResource(ResourceType.TOPIC, t.name): t.config for t in wanted}
    found = _settle(client.describe_configs(list(resources)), "describe", set())
    changes = []
    for resource, config in resources.items():
        is_now = found.get(resource, {})
        entries = [
            ConfigEntry(name, config[name], incremental_operation=AlterConfigOpType.SET)
            for name in _PUT_RIGHT
            if name in config and name in is_now and is_now[name].value != config[name]
        ]
        if entries:
            changes.append(
                ConfigResource(ResourceType.TOPIC, resource.name, incremental_configs=entries)
            )
    if changes:
        _settle(client.incremental_alter_configs(changes), "change", set())


def _ids(client: AdminClient, names: list[str]) -> dict[str, str]:
    if not names:
        return {}
    answers = client.describe_topics(TopicCollection(names), request_timeout=_SECONDS)
    known = _settle(answers, "describe", {KafkaError.UNKNOWN_TOPIC_OR_PART})
    return {name: _url_safe(str(known[name].topic_id)) for name in known}


def _url_safe(topic_id: str) -> str:
    # As Kafka's own tools write it; librdkafka's alphabet has "/", which positions must not.
    return topic_id.replace("+", "-").replace("/", "_")


def _settle(answers: dict[Any, Future[Any]], what: str, harmless: set[int]) -> dict[Any, Any]:
    """The results of an administrator's request, without those that failed in a harmless way."""
    results = {}
    for subject, answer in answers.items():
        try:
            results[subject] = answer.result(_SECONDS)
        except KafkaException as failure:
            error = failure.args[0]
            if error.code() not in harmless:
                name = getattr(subject, "name", subject)
                raise LogError(
                    f"cannot {what} topic {name}: {error.str()}",
                    remedy="see the broker's log, and the rights of this user",
                ) from failure
        except TimeoutError as failure:
            raise LogError(
                f"cannot {what} a topic: Kafka did not answer in {_SECONDS:g} s",
                remedy="see that it runs",
            ) from failure
    return results
