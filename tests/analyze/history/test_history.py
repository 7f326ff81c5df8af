"""Live views against the same queries in batch, over the log of a running pipeline."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from tests.analyze.commands import Commands

from millstream.analyze.planning.planner import Planner
from millstream.analyze.verify.comparison import Comparison
from millstream.cli.invoke import invoke
from millstream.log.connection import client_config
from millstream.log.producing.write import write
from millstream.log.topic_names import view_topic
from millstream.pipeline.pipeline_topics import ensure_topics

if TYPE_CHECKING:
    from tests.analyze.conftest import Live, Load

PIPELINE = """
app.stream("orders", schema="id LONG, city STRING, amount DOUBLE, at TIMESTAMP", event_time="at",
           lateness="1 hour")

@app.view(key=["window", "city"])
def by_hour(orders: DataFrame) -> DataFrame:
    return orders.groupBy(F.window("at", "1 hour"), "city").agg(
        F.count("*").alias("n"), F.sum("amount").alias("total"),
        F.approx_percentile("amount", 0.5).alias("middle"))

app.view("large", sql="SELECT id, city FROM orders WHERE amount > 2")
app.view("newest", key=["city"], mode="micro_batch", sql="SELECT city, id FROM orders")
"""
CITIES = ("Bern", "Ghent", "Kyoto")


def orders(start: int, count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": number,
            "city": CITIES[number % 3],
            "amount": number * 0.1,
            "at": f"2026-01-01T0{number % 4}:00:00Z",
        }
        for number in range(start, start + count)
    ]


def test_verify_agrees_with_the_live_view_and_finds_a_wrong_row(
    live: Live, pipeline: Load, capfd: pytest.CaptureFixture[str]
) -> None:
    live.start(pipeline(PIPELINE))
    live.send("orders", *orders(0, 60))
    live.until(lambda: sum(row["n"] for row in live.table("by_hour").values()) == 60)
    live.until(lambda: len(live.stream("large")) == 39)
    run = Commands(live, capfd)

    tolerances = {"total": 1e-9, "middle": 0.05}
    for view, rows, loose in (("by_hour", 12, tolerances), ("large", 39, {}), ("newest", 3, {})):
        code, verdict = run("verify", view, "--wait", "60")
        assert (code, verdict["differences"]) == (0, []), view
        assert (verdict["same"], verdict["still_moving"]) == (rows, 0)
        assert (verdict["records"], verdict["tolerances"]) == (60, loose)

    both = "SELECT sum(v.n) a, (SELECT max(_position.offset) FROM orders) b FROM by_hour v"
    assert run("query", "--history", both) == (0, [{"a": 60, "b": 59}])
    assert run("query", "--history", "SELECT id FROM orders", "--to", "2000-01-01") == (0, [])

    key, row = next((k, r) for k, r in live.records("by_hour") if k and r and r["_revision"] == 1)
    wrong = {**row, "n": 99, "_revision": 1_000_000}
    ghost = {**row, "city": "Atlantis", "_revision": 1}
    records = {key: wrong, key.replace(row["city"], "Atlantis"): ghost}
    encoded = {name: json.dumps(value).encode() for name, value in records.items()}
    write(live.settings.log, view_topic(live.app.name, "by_hour"), encoded, 10)
    code, verdict = run("verify", "by_hour")
    assert (code, verdict["same"]) == (1, 11)
    ahead, only_live = verdict["differences"]
    assert ahead["kind"] == "ahead of the log"
    assert (ahead["key"], ahead["live"]["n"], ahead["recomputed"]["n"]) == (key, 99, 5)
    assert (only_live["kind"], only_live["live"]["city"]) == ("not in the log", "Atlantis")


def test_history_queries_give_the_rows_of_servers_without_aborted_records(
    spark: SparkSession, live: Live, pipeline: Load, capfd: pytest.CaptureFixture[str]
) -> None:
    app, log = pipeline(PIPELINE), live.settings.log
    ensure_topics(app, log)
    live.app, live.planned = app, Planner(spark, app, live.settings).queries()
    run = Commands(live, capfd)
    window = {"start": "2026-01-01T00:00:00.000000Z", "end": "2026-01-01T01:00:00.000000Z"}
    topic = view_topic(app.name, "by_hour")

    def produce(producer: Producer, city: str, n: int, state: str = "") -> None:
        stated = {"_state": state} if state else {}
        row = {"window": window, "city": city, "n": n, "_revision": n, **stated}
        producer.produce(topic, json.dumps(row), json.dumps([window, city]))

    producer = Producer(client_config(log, transactional_id=f"{app.name}.test"))
    producer.init_transactions(30)
    producer.begin_transaction()
    for city in CITIES:
        produce(producer, city, 1)
    for city in CITIES[1:]:
        produce(producer, city, 1, "final")
    produce(producer, "Kyoto", 2)
    producer.commit_transaction(30)
    producer.begin_transaction()
    for city in ("Bern", "Atlantis"):
        produce(producer, city, 99)
    assert producer.flush(10) == 0
    producer.abort_transaction(30)

    answer = run("query", "--history", "SELECT city, n, _state FROM by_hour ORDER BY city")
    assert answer == (
        0,
        [
            {"city": "Bern", "n": 1, "_state": "provisional"},
            {"city": "Ghent", "n": 1, "_state": "final"},
            {"city": "Kyoto", "n": 2, "_state": "corrected"},
        ],
    )


def test_an_error_of_a_history_query_is_one_line(
    spark: object, live: Live, pipeline: Load, capfd: pytest.CaptureFixture[str]
) -> None:
    app = pipeline('app.stream("orders", schema="id LONG")')
    ensure_topics(app, live.settings.log)
    place = [app.location.file, f"--set=log.bootstrap={live.settings.log.bootstrap}"]
    for sql, words in (
        ("SELECT idd FROM orders", "idd"),
        ("SELECT id FROM ordres", "did you mean 'orders'?"),
        ("DROP TABLE orders", "one SELECT"),
    ):
        capfd.readouterr()
        assert invoke(["query", "--history", sql, *place]) == 1
        error = capfd.readouterr().err.splitlines()[-1]
        assert "error: " in error
        assert words in error
    assert invoke(["verify", "order", *place]) == 1


def test_only_rounding_and_estimates_have_a_tolerance() -> None:
    same = Comparison(
        ("n", "total", "about", "tags"), {"total": 1e-9, "about": 0.05}, frozenset({"tags"})
    )
    row = {"n": 10, "total": Decimal("0.3"), "about": 100, "tags": ["a", "b"]}
    assert same.differing(row, {**row, "total": 0.1 + 0.2, "about": 104, "tags": ["b", "a"]}) == ()
    other = {"n": 11, "total": 0.3001, "about": 106, "tags": ["a"]}
    assert same.differing(row, other) == ("n", "total", "about", "tags")
    assert same.differing({**row, "n": None}, {**row, "n": 0}) == ("n",)
