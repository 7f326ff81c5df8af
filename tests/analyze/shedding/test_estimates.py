"""Estimates from a sample are right on average, and their errors have the stated confidence."""

from __future__ import annotations

import json
import math
import random
from itertools import groupby
from statistics import fmean
from typing import Any

import pytest
from confluent_kafka import Producer

from millstream.analyze.history.history import as_batch, find_log_range
from millstream.analyze.records.reader import kafka_options
from millstream.analyze.recovery.shed_ranges import (
    ShedRange,
    change_share,
    is_kept,
    left_out,
    sample,
)
from millstream.log.connection import client_config
from millstream.log.topic_names import stream_topic
from millstream.pipeline.pipeline_topics import ensure_topics

GROUPS, SIZE = 250, 200
# Always of the same name: the topic's is part of what decides which events are in the sample.
BODY = """
app = App("estimates")
app.stream("orders", schema="city INT, amount DOUBLE, quantity LONG, tags ARRAY<INT>")

@app.view(key=["city"], shed="30 seconds")
def by_city(orders: DataFrame) -> DataFrame:
    return orders.groupBy("city").agg(
        F.count("*").alias("n"),
        F.count_if(F.col("amount") > 60).alias("large"),
        F.sum("amount").alias("amount"),
        F.sum("quantity").alias("quantity"),
        F.avg("amount").alias("mean"))

app.view("by_tag", key=["city", "tag"], shed="30 seconds", sql='''
    SELECT city, tag, count(*) AS n
    FROM (SELECT city, explode(tags) AS tag FROM orders) GROUP BY city, tag''')

app.view("twice", key=["city"], shed="30 seconds", sql='''
    SELECT city, count(*) AS n, 1 AS tag
    FROM (SELECT city FROM orders UNION ALL SELECT city FROM orders) GROUP BY city''')
"""


def by_tag(row: dict[str, Any]) -> int:
    return int(row["tag"])


def orders() -> list[dict[str, Any]]:
    draw = random.Random(7)
    return [
        {
            "city": number % GROUPS,
            "amount": draw.gauss(50, 20),
            "quantity": draw.randrange(1, 10),
            # Of the same tag twice: what a sample has of an event, it has twice.
            "tags": [1, 1] if number % 2 else [2],
        }
        for number in range(GROUPS * SIZE)
    ]


@pytest.mark.timeout(300)
def test_estimates_are_right_on_average_and_within_their_errors_as_often_as_stated(
    planned: Any, pipeline: Any, log_settings: Any
) -> None:
    app, queries = pipeline(BODY), planned(BODY)
    ensure_topics(app, log_settings)
    topic, sent = stream_topic(app.name, "orders"), orders()
    producer = Producer(client_config(log_settings, linger_ms=50))
    for event in sent:
        producer.produce(topic, json.dumps(event), partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0

    def rows(view: str, share: int) -> list[dict[str, Any]]:
        ranges = [ShedRange(topic, 0, 0, None, share, 0)] if share < 1000 else []
        past = find_log_range(log_settings, [topic])
        frame = as_batch(
            sample(queries[view].batch_rows, ranges), past, kafka_options(log_settings)
        )
        return [row.asDict(recursive=True) for row in frame.collect()]

    truth: dict[int, dict[str, float]] = {}
    for number, event in enumerate(sent):
        city = truth.setdefault(
            event["city"], {"n": 0, "large": 0, "amount": 0.0, "quantity": 0, "kept": 0}
        )
        city["n"] += 1
        city["large"] += event["amount"] > 60
        city["amount"] += event["amount"]
        city["quantity"] += event["quantity"]
        city["kept"] += is_kept(topic, 0, number, 300)
    for city in truth.values():
        city["mean"] = city["amount"] / city["n"]

    for row in rows("by_city", 1000):
        assert set(row["_error"].values()) == {0.0}
        for name in row["_error"]:
            assert row[name] == pytest.approx(truth[row["city"]][name], rel=1e-12)

    estimated = rows("by_city", 300)
    assert len(estimated) == GROUPS
    for row in estimated:  # Spark keeps the events that we count as kept
        assert row["_revision"] == truth[row["city"]]["kept"]
    for name in ("n", "large", "amount", "quantity", "mean"):
        true = [truth[row["city"]][name] for row in estimated]
        off = [row[name] - exact for row, exact in zip(estimated, true, strict=True)]
        bars = [row["_error"][name] for row in estimated]
        inside = fmean(abs(each) <= bar for each, bar in zip(off, bars, strict=True))
        assert 0.91 <= inside <= 0.99, name  # of 250 rows, three deviations
        # The mean of all rows' deviations is itself within three of its own deviations of 0.
        spread = fmean(bar / 1.96 for bar in bars) / math.sqrt(GROUPS)
        assert abs(fmean(off)) < 3 * spread, name

    # Odd cities have tag 1 only, each event of theirs twice; even ones tag 2, once.
    # Of the union of a stream with itself, too, a sample has each event twice or not at all.
    tagged = [*sorted(rows("by_tag", 300), key=by_tag), *rows("twice", 300)]
    for tag, found in groupby(tagged, by_tag):
        size = SIZE * 2 if tag == 1 else SIZE
        assert fmean(abs(row["n"] - size) <= row["_error"]["n"] for row in found) >= 0.92


def test_shed_events_are_counted_by_position_and_earlier_ranges_stay() -> None:
    span = ShedRange("t", 3, 1000, None, 250, 0)
    assert left_out(span, 1000, 21000) == pytest.approx(15_000, rel=0.02)
    assert left_out(span, 1000, 21000) == sum(
        not is_kept("t", 3, offset, 250) for offset in range(1000, 21000)
    )
    # A smaller share is part of a larger one: less changes when it is lowered.
    assert all(is_kept("t", 3, each, 500) for each in range(999) if is_kept("t", 3, each, 250))

    first = change_share((), {"t": {0: 10, 1: 20}}, 500, now=1)
    assert [(each.partition, each.start, each.stop) for each in first] == [
        (0, 10, None),
        (1, 20, None),
    ]
    lowered = change_share(first, {"t": {0: 30, 1: 20}}, 100, now=2)
    assert [(each.partition, each.start, each.stop, each.share) for each in lowered] == [
        (0, 10, 30, 500),
        (0, 30, None, 100),
        (1, 20, None, 100),
    ]
    over = change_share(lowered, {"t": {0: 40, 1: 50}}, 1000, now=3)
    assert [(each.partition, each.stop) for each in over] == [(0, 30), (0, 40), (1, 50)]
