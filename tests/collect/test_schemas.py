"""At each start, schemas are compared with the stored ones."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from millstream import App
from millstream.collect.schemas import check_schemas
from millstream.errors import LogError, PipelineError
from millstream.log.connection import client_config
from millstream.log.settings import LogSettings
from millstream.log.topic_names import schemas_topic, stream_topic
from millstream.pipeline.pipeline_topics import ensure_topics


def start(
    log: LogSettings, name: str, schema: str, *, accept: bool = False, key: str | None = None
) -> None:
    app = App(name)
    app.stream("orders", schema=schema, key=key)
    app.stream("other", schema="x INT")
    ensure_topics(app, log)
    check_schemas(app, log, accept)


def write(log: LogSettings, topic: str, value: bytes, key: str = "") -> None:
    producer = Producer(client_config(log))
    producer.produce(topic, value, key)
    assert producer.flush(30) == 0


def test_a_change_that_breaks_events_is_refused_until_it_is_accepted(
    app_name: str, log_settings: LogSettings
) -> None:
    start(log_settings, app_name, "id LONG NOT NULL, price DOUBLE")
    write(log_settings, stream_topic(app_name, "orders"), b'{"id": 1}')
    start(log_settings, app_name, "id LONG, price DOUBLE, note STRING")  # harmless, and remembered
    for _ in range(2):  # a refused start changes nothing
        with pytest.raises(PipelineError) as refused:
            start(log_settings, app_name, "id LONG, price STRING")
        text = str(refused.value)
        assert "field 'price' was DOUBLE, now is STRING" in text
        assert "field 'note' was STRING, now is gone" in text
        assert "--accept-schema-change" in text
        assert refused.value.file == __file__
    start(log_settings, app_name, "id LONG, price STRING", accept=True)
    start(log_settings, app_name, "id LONG, price STRING")
    with pytest.raises(PipelineError, match="had no key, now key 'id'"):
        start(log_settings, app_name, "id LONG, price STRING", key="id")


def test_a_stream_without_events_may_change_in_any_way(
    app_name: str, log_settings: LogSettings
) -> None:
    start(log_settings, app_name, "id LONG")
    start(log_settings, app_name, "name STRING NOT NULL", key="name")
    write(log_settings, stream_topic(app_name, "orders"), b'{"name": "a"}')
    with pytest.raises(PipelineError, match="'name' was STRING NOT NULL, now is gone"):
        start(log_settings, app_name, "id LONG")


def test_a_schema_stored_by_another_version_is_not_overwritten(
    app_name: str, log_settings: LogSettings
) -> None:
    start(log_settings, app_name, "id LONG")
    write(log_settings, schemas_topic(app_name), b"version 9", "orders")
    with pytest.raises(LogError, match="offset 2"):
        start(log_settings, app_name, "id LONG")
