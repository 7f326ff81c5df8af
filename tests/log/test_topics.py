from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import ConfigResource, ResourceType
from tests.conftest import Eventually

from millstream import App
from millstream.errors import LogError
from millstream.log.broker import Broker
from millstream.log.connection import admin, client_config
from millstream.log.settings import LogSettings
from millstream.log.topic_names import (
    audit_topic,
    groups_topic,
    keys_topic,
    rebuilds_topic,
    schemas_topic,
    seen_topic,
    stream_topic,
    view_topic,
    views_topic,
)
from millstream.log.topics import topic_ids
from millstream.pipeline.pipeline_topics import ensure_topics, recreate_topic, topics
from millstream.values.position import Position


def config_of(log: LogSettings, topic: str) -> dict[str, str]:
    client, resource = admin(log), ConfigResource(ResourceType.TOPIC, topic)
    (answer,) = client.describe_configs([resource]).values()
    return {name: entry.value for name, entry in answer.result(30).items()}


def test_every_stream_and_view_gets_its_topics(app: App, log_settings: LogSettings) -> None:
    ensure_topics(app, log_settings)
    ours = {name for name in admin(log_settings).list_topics(timeout=30).topics if app.name in name}
    assert {name.removeprefix(f"{app.name}.") for name in ours} == {
        *("stream.events", "rejected.events", "late.events", "seen.events"),
        *("view.by_city", "view.of_oslo"),
        *("audit", "views", "rebuilds", "keys", "schemas", "groups"),
    }
    assert ours == set(topic_ids(log_settings, ours))


def test_a_table_is_compacted_and_everything_else_is_kept_for_a_time(
    app: App, log_settings: LogSettings
) -> None:
    ensure_topics(app, log_settings)
    kept = {topic.name: config_of(log_settings, topic.name) for topic in topics(app, log_settings)}
    compacted = {name for name, config in kept.items() if config["cleanup.policy"] == "compact"}
    tables = {view_topic(app.name, "by_city"), views_topic(app.name), rebuilds_topic(app.name)}
    others = {keys_topic(app.name), schemas_topic(app.name), groups_topic(app.name)}
    assert compacted == tables | others
    assert kept[stream_topic(app.name, "events")]["retention.ms"] == str(2 * 24 * 3600 * 1000)
    assert kept[seen_topic(app.name, "events")]["retention.ms"] == str((60 + 10) * 60 * 1000)
    assert kept[view_topic(app.name, "by_city")]["min.compaction.lag.ms"] == "600000"
    assert {config["message.timestamp.type"] for config in kept.values()} == {"CreateTime"}


def test_a_view_whose_rows_are_shown_otherwise_has_topics_for_that() -> None:
    app = App("x")
    app.stream("events", schema="k STRING, at TIMESTAMP", event_time="at")
    sql = "SELECT k, count(*) AS n FROM events GROUP BY k"
    app.view("entered", sql=sql, key="k", ledger=["n"])
    app.view("new", sql=sql, key="k", accumulation="discard")
    kept = {topic.name: topic.config for topic in topics(app, LogSettings())}
    policies = {
        name.removeprefix("x."): config["cleanup.policy"]
        for name, config in kept.items()
        if name.endswith((".entered", ".new"))
    }
    assert policies == {
        "view.entered": "compact",
        "ledger.entered": "delete",
        "panes.entered": "compact",
        "view.new": "delete",
        "changes.new": "compact",
        "panes.new": "compact",
    }
    assert kept["x.ledger.entered"]["retention.ms"] == "-1"


def test_a_busy_tables_topic_stays_small(
    app: App, broker: Broker, log_settings: LogSettings, eventually: Eventually
) -> None:
    brief = log_settings.model_copy(update={"history": "1 second"})
    ensure_topics(app, brief)
    topic = view_topic(app.name, "by_city")
    producer = Producer(client_config(brief, linger_ms=5, queue_buffering_max_kbytes=1 << 20))
    for number in range(60_000):  # 60 MiB, of a table of ten rows
        producer.produce(topic, number.to_bytes(8, "big") * 128, str(number % 10))
    assert producer.flush(60) == 0
    files = broker.home.kafka / "data" / f"{topic}-0"

    def size() -> int:
        total = 0
        for segment in files.glob("*.log"):
            with contextlib.suppress(FileNotFoundError):  # compacted away meanwhile
                total += segment.stat().st_size
        return total

    assert size() > 50 << 20
    # The segment that is written to, and what is newest of the rest.
    eventually(lambda: size() < 20 << 20, 120)


def test_topics_may_be_ensured_by_many_processes_at_once_and_again(
    app: App, log_settings: LogSettings
) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: ensure_topics(app, log_settings), range(4)))
    names = [topic.name for topic in topics(app, log_settings)]
    before = topic_ids(log_settings, names)
    ensure_topics(app, log_settings)
    assert topic_ids(log_settings, names) == before
    assert len(before) == len(names)


def test_a_changed_retention_reaches_a_topic_that_is_there_already(
    app_name: str, log_settings: LogSettings, eventually: Eventually
) -> None:
    for days in (2, 5):
        app = App(app_name)
        app.stream("events", schema="id LONG", retention=f"{days} days")
        ensure_topics(app, log_settings)
        expected = str(days * 24 * 3600 * 1000)

        def is_set(expected: str = expected) -> bool:
            config = config_of(log_settings, stream_topic(app_name, "events"))
            return config["retention.ms"] == expected

        eventually(is_set)  # the broker applies a little later what the controller has confirmed


def test_a_topic_made_anew_has_another_id_that_a_position_can_carry(
    app: App, log_settings: LogSettings
) -> None:
    ensure_topics(app, log_settings)
    topic = view_topic(app.name, "by_city")
    seen = topic_ids(log_settings, [topic])
    epochs = {seen[topic]}
    for _ in range(5):
        epochs.add(recreate_topic(app, log_settings, "by_city"))
    assert len(epochs) == 6
    assert topic_ids(log_settings, [topic])[topic] in epochs - {seen[topic]}
    assert {Position.parse(str(Position(epoch, {0: 1}))).epoch for epoch in epochs} == epochs
    assert config_of(log_settings, topic)["cleanup.policy"] == "compact"


def test_a_missing_topic_has_no_id(app_name: str, log_settings: LogSettings) -> None:
    assert topic_ids(log_settings, [audit_topic(app_name)]) == {}
    assert topic_ids(log_settings, []) == {}


def test_more_replicas_than_brokers_is_an_error_that_names_the_topic(
    app: App, log_settings: LogSettings
) -> None:
    three = log_settings.model_copy(update={"replication": 3})
    with pytest.raises(LogError, match=f"cannot create topic {app.name}"):
        ensure_topics(app, three)
