"""A query reports events that retention deleted before it read them; then it goes on, or stops."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from millstream.analyze.recovery.data_loss import add_lost, find_lost
from millstream.analyze.recovery.progress import ReadOffsets
from millstream.log.connection import admin
from millstream.log.topic_names import stream_topic
from millstream.values.report import LostEvents


def test_lost_events_are_between_the_read_offset_and_the_oldest_one() -> None:
    read = ReadOffsets({"t": {"0": 5, "1": 9}}, 1)
    held = {"t": {0: (8, 20), 1: (9, 9), 2: (4, 7), 3: (0, 7)}}
    assert list(find_lost(read, held, 2)) == [
        LostEvents("t", 0, 5, 8, 2),
        LostEvents("t", 2, 0, 4, 2),
    ]
    assert len(LostEvents("t", 0, 5, 8, 2)) == 3
    assert str(LostEvents("t", 0, 5, 8, 2)) == "3 events of t/0, 5-7"


def test_a_loss_that_is_found_again_is_the_same_one() -> None:
    first, later = LostEvents("t", 0, 5, 8, 2), LostEvents("t", 0, 5, 9, 3)
    assert add_lost([first], [LostEvents("t", 0, 5, 8, 9)]) == (first,)
    assert add_lost([first], [later]) == (later,)
    assert add_lost([first], [LostEvents("t", 0, 30, 32, 9)]) == (
        first,
        LostEvents("t", 0, 30, 32, 9),
    )


@pytest.mark.timeout(400)
def test_deleted_events_are_reported_and_the_view_goes_on_or_stops(
    live: Any, pipeline: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = pipeline("""
app.stream("orders", schema="id LONG")
app.view("goes_on", sql="SELECT id FROM orders")
app.view("stops", sql="SELECT id + 0 AS id FROM orders", on_data_loss="stop")
app.view("counts", key=["all"], mode="micro_batch",
         sql="SELECT 'all' AS `all`, count(*) AS n FROM orders")
""")
    live.start(app)
    topic = stream_topic(live.app.name, "orders")
    live.send("orders", *({"id": number} for number in range(10)))

    def has_read(view: str) -> int:
        return int(live.queries.counts()[view].read.get(topic, {}).get("0", 0))

    live.until(lambda: all(has_read(view) == 10 for view in ("goes_on", "stops", "counts")))
    live.stop()
    live.send("orders", *({"id": number} for number in range(10, 20)))
    client = admin(live.settings.log)
    deleted = client.delete_records([TopicPartition(topic, 0, 14)])
    assert all(answer.result(10).low_watermark == 14 for answer in deleted.values())

    with caplog.at_level(logging.ERROR, "millstream.analyze"):
        live.start(app)
        there = [*range(10), *range(14, 20)]
        live.gives(lambda: [row["id"] for row in live.stream("goes_on")], there)
        live.gives(lambda: [row["n"] for row in live.table("counts").values()], [16])
        live.until(lambda: live.queries.counts()["stops"].error)
    lost = f"4 events of {topic}/0, 10-13"
    assert f"view goes_on goes on without {lost}" in caplog.text
    counts = live.queries.counts()
    assert (counts["goes_on"].lost, counts["goes_on"].losses[0].stop) == (4, 14)
    assert f"retention deleted {lost}" in counts["stops"].error
    assert "on_data_loss" in counts["stops"].error
    assert "millstream rebuild stops" in counts["stops"].error
    live.send("orders", {"id": 20})
    live.gives(lambda: [row["id"] for row in live.stream("goes_on")], [*there, 20])
    assert 20 not in [row["id"] for row in live.stream("stops")]

    live.stop()
    live.start(app)
    live.until(lambda: live.queries.counts()["goes_on"].state == "running")
    assert live.queries.counts()["goes_on"].lost == 4, "the same loss was counted twice"


@pytest.mark.timeout(400)
def test_events_deleted_while_queries_run_are_reported(
    live: Any, pipeline: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # The queries are slow and the events large, so that most are deleted before they are fetched.
    slowly = "coalesce(java_method('java.lang.Thread', 'sleep', 100L), '') <> 'never'"
    app = pipeline(f"""
app.stream("orders", schema="id LONG, padding STRING")
app.view("real_time", mode="real_time", sql="SELECT id FROM orders WHERE {slowly}")
app.view("batches", mode="micro_batch", sql="SELECT id + 0 AS id FROM orders WHERE {slowly}")
app.view("stops", mode="micro_batch", on_data_loss="stop",
         sql="SELECT id + 1 AS id FROM orders WHERE {slowly}")
""")
    live.settings = live.settings.model_copy(
        update={"analyze": live.settings.analyze.model_copy(update={"batch_events": 4})}
    )
    live.start(app)
    topic = stream_topic(live.app.name, "orders")
    views = ("real_time", "batches", "stops")
    live.until(lambda: all(live.queries.state_of(view)[0] == "running" for view in views))
    live.send("orders", *({"id": number, "padding": "x" * 100_000} for number in range(80)))
    live.until(lambda: all(live.records(view) for view in views))
    with caplog.at_level(logging.ERROR, "millstream.analyze"):
        client = admin(live.settings.log)
        deleted = client.delete_records([TopicPartition(topic, 0, 70)])
        assert all(answer.result(10).low_watermark == 70 for answer in deleted.values())
        for view in ("real_time", "batches"):
            live.until(lambda view=view: live.stream(view)[-1:] == [{"id": 79}])
            counts = live.queries.counts()[view]
            (lost,) = counts.losses
            assert (lost.topic, lost.stop, counts.lost) == (topic, 70, 70 - lost.start)
            ids = {row["id"] for row in live.stream(view)}
            assert ids >= {*range(lost.start), *range(70, 80)}, "what is not lost is in the view"
            assert f"view {view} goes on without {lost}" in caplog.text
        live.until(lambda: "retention deleted" in live.queries.counts()["stops"].error)
    assert 71 not in {row["id"] for row in live.stream("stops")}


@pytest.mark.timeout(400)
def test_events_deleted_before_a_querys_first_commit_are_reported(live: Any, pipeline: Any) -> None:
    never = {"analyze": live.settings.analyze.model_copy(update={"checkpoint_interval": "1 hour"})}
    live.settings = live.settings.model_copy(update=never)
    app = pipeline("""
app.stream("orders", schema="id LONG")
app.view("ids", mode="real_time", sql="SELECT id FROM orders")
""")
    live.start(app)
    topic = stream_topic(live.app.name, "orders")
    live.send("orders", *({"id": number} for number in range(10)))
    live.gives(lambda: [row["id"] for row in live.stream("ids")], [*range(10)])
    live.stop()
    live.send("orders", *({"id": number} for number in range(10, 20)))
    client = admin(live.settings.log)
    deleted = client.delete_records([TopicPartition(topic, 0, 14)])
    assert all(answer.result(10).low_watermark == 14 for answer in deleted.values())
    live.start(app)
    live.gives(lambda: [row["id"] for row in live.stream("ids")], [*range(10), *range(14, 20)])
    (lost,) = live.queries.counts()["ids"].losses
    assert str(lost) == f"14 events of {topic}/0, 0-13", "it starts from scratch, without these"
