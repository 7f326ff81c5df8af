"""How far a view is behind, whether that grows, and when it will have caught up."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import msgspec
from confluent_kafka import Producer
from tests.analyze.run_late_events import declare, plans
from tests.conftest import Eventually

from millstream.analyze.monitor.lag import Arrivals, LagMonitor, LagTrend
from millstream.log.connection import client_config
from millstream.log.settings import LogSettings
from millstream.log.topic_names import audit_topic
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.values.report import ProcessReport, ViewCounts


def test_a_shrinking_lag_has_a_time_to_catch_up() -> None:
    trend = LagTrend()
    assert trend.add(0.0, 1000) == ("steady", None)
    assert trend.add(10.0, 1500) == ("growing", None)
    assert trend.add(20.0, 1040) == ("steady", None)
    assert trend.add(30.0, 400) == ("shrinking", 20.0)
    assert trend.add(35.0, 0) == ("shrinking", 0.0)
    assert trend.add(70.0, 0) == ("steady", None)


def test_the_lag_in_seconds_is_the_age_of_the_oldest_waiting_event() -> None:
    arrivals = Arrivals(("orders",))
    assert arrivals.current_until(10_000, end=100, read=100, read_at=9000) == 10_000
    assert arrivals.current_until(12_000, end=500, read=100, read_at=9000) == 10_000
    assert arrivals.current_until(14_000, end=900, read=300, read_at=14_000) == 10_000
    assert arrivals.current_until(16_000, end=1300, read=500, read_at=16_000) == 12_000
    assert arrivals.current_until(18_000, end=1300, read=1300, read_at=18_000) == 18_000
    # More had come than was read before anybody looked.
    arrivals = Arrivals(("orders",))
    assert arrivals.current_until(10_000, end=900, read=100, read_at=4000) == 4000
    assert arrivals.current_until(20_000, end=950, read=200, read_at=20_000) == 10_000


def test_events_that_a_real_time_view_filters_out_do_not_make_it_fall_behind(
    log_settings: LogSettings, app_name: str, eventually: Eventually
) -> None:
    app = declare(app_name)
    ensure_topics(app, log_settings)
    (live,) = plans(app)
    batches = replace(live, name="batches", mode="micro_batch")
    topic, producer = live.reads[0], Producer(client_config(log_settings))
    now = time.time_ns() // 1_000_000

    def send(at: int) -> None:
        producer.produce(topic, json.dumps({"id": 1}), timestamp=at)
        assert producer.flush(10) == 0

    for second in range(4):
        send(now - 60_000 + second)
    lags = LagMonitor(app.name, log_settings, [batches, live], commits_every=60.0)

    def trends(read: int, read_at: int) -> tuple[str, str]:
        """Trends of the real-time view and the other one, with one more event that is in no row."""
        send(time.time_ns() // 1_000_000)
        known = ViewCounts(state="running", read={topic: {"0": read}}, read_at=read_at)
        views = {plan.name: msgspec.structs.replace(known) for plan in (live, batches)}
        counts = lags.add_to(views)
        assert (counts[live.name].behind or 0) > 0 or read == 4
        return counts[live.name].trend, counts[batches.name].trend

    try:
        # It had read all when it committed, 40 s ago: whether it has read the rest shows later.
        eventually(lambda: trends(4, now - 40_000) == ("", "growing"))
        # It had not: events of before its commit still wait.
        eventually(lambda: trends(2, now - 40_000) == ("growing", "growing"))
        # Its commit is overdue.
        eventually(lambda: trends(4, now - 200_000) == ("growing", "growing"))
    finally:
        lags.close()


def test_the_position_of_a_real_time_view_is_the_furthest_known_one(
    log_settings: LogSettings, app_name: str, eventually: Eventually
) -> None:
    app = declare(app_name)
    ensure_topics(app, log_settings)
    (live,) = plans(app)
    batches = replace(live, name="batches", mode="micro_batch")
    topic, producer = live.reads[0], Producer(client_config(log_settings))
    start = time.time_ns() // 1_000_000 - 60_000
    for number in range(10):
        producer.produce(topic, json.dumps({"id": number}), timestamp=start + number)
    assert producer.flush(10) == 0
    lags = LagMonitor(app.name, log_settings, [batches, live])

    def measured(view: str = live.name, **known: Any) -> tuple[int | None, bool]:
        counts = lags.add_to({plan.name: ViewCounts(**known) for plan in (live, batches)})[view]
        return counts.behind, counts.behind_s > 50

    try:
        eventually(lambda: measured() == (10, False))
        committed: dict[str, Any] = {"read": {topic: {"0": 4}}, "read_at": start}
        eventually(lambda: measured(**committed) == (6, True))
        # A server has rows of later events than the checkpoint has.
        served = ViewCounts(newest_received_at=start + 8)
        views = {live.name: served, batches.name: served}
        report = ProcessReport("serve", "s", start, start, views=views)
        producer.produce(audit_topic(app.name), msgspec.json.encode(report))
        assert producer.flush(10) == 0
        eventually(lambda: measured(**committed) == (1, True))
        # A batch may have ended amid events that were received at the same moment.
        assert measured(batches.name, **committed)[0] == 6
        eventually(lambda: measured(read={topic: {"0": 10}}, read_at=start) == (0, False))
    finally:
        lags.close()
