"""How far a view is behind, whether that grows, and when it will have caught up."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
from confluent_kafka import Producer

from millstream.analyze.lag import Course, Lags
from millstream.audit import Report, ViewCounts
from millstream.log.connection import client_config
from millstream.log.topics import audit_topic, ensure_topics, stream_topic


def test_a_lag_that_shrinks_tells_when_it_is_over() -> None:
    course = Course()
    assert course.add(0.0, 1000) == ("steady", None)
    assert course.add(10.0, 1500) == ("growing", None)
    assert course.add(20.0, 1040) == ("steady", None)
    assert course.add(30.0, 400) == ("shrinking", 20.0)
    assert course.add(35.0, 0) == ("shrinking", 0.0)
    assert course.add(70.0, 0) == ("steady", None)


def test_a_view_is_where_the_furthest_that_is_known_of_it_is(
    planned: Any, pipeline: Any, log_settings: Any, eventually: Any
) -> None:
    body = """
app.stream("orders", schema="id LONG")
app.view("ids", sql="SELECT id FROM orders")
"""
    app = pipeline(body)
    ensure_topics(app, log_settings)
    topic, producer = stream_topic(app.name, "orders"), Producer(client_config(log_settings))
    start = time.time_ns() // 1_000_000 - 60_000
    for number in range(10):
        producer.produce(topic, json.dumps({"id": number}), timestamp=start + number)
    assert producer.flush(10) == 0
    lags = Lags(app.name, log_settings, [planned(body)["ids"].plan])

    def measured(**known: Any) -> tuple[int | None, bool]:
        counts = lags.tell({"ids": ViewCounts(**known)})["ids"]
        return counts.behind, counts.behind_s > 50

    try:
        eventually(lambda: measured() == (10, False))
        committed = {"read": {topic: {"0": 4}}, "read_at": start}
        eventually(lambda: measured(**committed) == (6, True))
        # A server has rows of later events than the checkpoint tells of.
        served = ViewCounts(newest_received_at=start + 8)
        report = Report("serve", "s", start, start, views={"ids": served})
        producer.produce(audit_topic(app.name), msgspec.json.encode(report))
        assert producer.flush(10) == 0
        eventually(lambda: measured(**committed) == (1, True))
        eventually(lambda: measured(read={topic: {"0": 10}}, read_at=start) == (0, False))
    finally:
        lags.close()
