"""Triggers, accumulation and ledgers of a running query."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from tests.analyze.conftest import Live, Load, PlanOf, RunningUpkeep

from millstream.analyze.history.history import as_batch, find_log_range
from millstream.analyze.planning.planner import Planner
from millstream.analyze.records.reader import kafka_options
from millstream.errors import PipelineError
from millstream.log.connection import client_config
from millstream.log.consumer import bounds, read_range
from millstream.log.topic_names import ledger_topic, stream_topic
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.values.event import ID, WATERMARK
from millstream.values.ledger_entry import decode, sums

STREAM = """
app.stream("clicks", schema="page STRING, at TIMESTAMP, price DOUBLE", event_time="at",
           lateness="1 hour")
"""
QUERY = "SELECT window(at, '1 minute') AS window, page, {} FROM clicks GROUP BY 1, 2"


def view(select: str = "count(*) AS n", name: str = "v", **options: Any) -> str:
    given = {"key": ["window", "page"], **options}
    written = ", ".join(f"{option}={value!r}" for option, value in given.items())
    return f"{STREAM}\napp.view({name!r}, sql={QUERY.format(select)!r}, {written})\n"


def test_a_ledger_names_the_late_events_of_a_real_time_query(live: Live, pipeline: Load) -> None:
    body = view("count(*) AS n, sum(price) AS total", accumulation="discard", ledger=["n", "total"])
    app = pipeline(body)
    live.start(app)
    (plan,) = [query.plan for query in live.planned]
    assert plan.mode == "real_time", plan.reason
    assert live.queries is not None
    settings = live.settings.model_copy(
        update={"analyze": live.settings.analyze.model_copy(update={"idle": "5 minutes"})}
    )
    upkeep = RunningUpkeep(settings, app, live.planned)
    producer = Producer(client_config(settings.log, linger_ms=0))
    started = [False]

    def send(event: dict[str, Any], **headers: str) -> None:
        topic = stream_topic(app.name, "clicks")
        producer.produce(topic, json.dumps(event), "k", headers=list(headers.items()))
        assert producer.flush(10) == 0

    def entries() -> list[Any]:
        topic = ledger_topic(app.name, "v")
        return [
            decode(record.value or b"")
            for partition, (first, end) in bounds(settings.log, topic).items()
            if first < end
            for record in read_range(settings.log, topic, partition, first, end)
        ]

    def balance() -> dict[str, Any]:
        assert live.queries is not None
        if started[0] or live.queries.settled:
            started[0] = True
            upkeep.step(live.queries.counts())
        return {key[1]: amounts for key, amounts in sums(entries()).values()}

    try:
        for price in (0.1, 0.2):
            send({"page": "a", "at": "2026-01-01T00:00:10Z", "price": price})
        live.gives(lambda: balance() or len(live.records("v")), 2)
        send({"page": "b", "at": "2026-01-01T00:01:10Z", "price": 1})
        live.gives(lambda: balance().get("a", {}).get("n"), 2)
        late = {"page": "a", "at": "2026-01-01T00:00:20Z", "price": 0.3}
        send(late, **{ID: "late one", WATERMARK: "1767225670000"})
        live.gives(lambda: balance().get("a", {}).get("n"), 3)
        of_a = [entry for entry in entries() if entry.key[1] == "a"]
        assert [entry.kind for entry in of_a] == ["assertion", "retraction", "assertion"]
        assert [entry.reason for entry in of_a] == [[], ["late one"], ["late one"]]
        shown = [row for _, row in live.records("v") if row is not None and row["page"] == "a"]
        assert [row["n"] for row in shown] == [1, 1, 0, 1]
        assert [row.get("_state") for row in shown] == [None, None, "final", "corrected"]
    finally:
        upkeep.close()


UNION = f"""{STREAM}
app.stream("taps", schema="page STRING, at TIMESTAMP", event_time="at", lateness="1 hour")
app.view("v", key=["window", "page"], ledger="n", sql='''
    SELECT window(at, '1 minute') AS window, page, count(*) AS n
    FROM (SELECT page, at FROM clicks UNION ALL SELECT page, at FROM taps) GROUP BY 1, 2''')
"""


def test_a_ledger_names_the_late_events_of_a_union_of_streams(
    spark: SparkSession, live: Live, pipeline: Load
) -> None:
    app, log = pipeline(UNION), live.settings.log
    ensure_topics(app, log)
    query = Planner(spark, app, live.settings).query("v")
    producer = Producer(client_config(log, linger_ms=0))
    event = json.dumps({"page": "a", "at": "2026-01-01T00:00:10Z"})
    for stream in ("clicks", "taps"):
        for name, watermark in (
            ("in order", ""),
            ("out of order", "1767225650000"),
            ("late", "1767225670000"),
        ):
            headers = {ID: f"{stream} {name}", **({WATERMARK: watermark} if watermark else {})}
            topic = stream_topic(app.name, stream)
            producer.produce(topic, event, headers=list(headers.items()))
    assert producer.flush(10) == 0
    past = find_log_range(log, query.plan.reads)
    (row,) = as_batch(query.batch_rows, past, kafka_options(log)).collect()
    assert (row["n"], sorted(row["_late"])) == (6, ["clicks late", "taps late"])


CHAIN = f"""{STREAM}
app.view("v", sql="SELECT page, count(*) AS n FROM clicks GROUP BY page", key="page",
         trigger="every 2 events", accumulation="discard")
app.view("w", sql="SELECT page, sum(n) AS n FROM v GROUP BY page", key="page",
         reads={{"v": "changes"}})
"""


def test_a_view_that_reads_another_reads_its_shown_rows(live: Live, pipeline: Load) -> None:
    app = pipeline(CHAIN)
    live.start(app)
    upkeep = RunningUpkeep(live.settings, app, live.planned)
    upkeep.step({})
    event = {"page": "a", "at": "2026-01-01T00:00:10Z"}
    try:
        live.send("clicks", *[event] * 7)
        live.gives(lambda: live.table("w"), {'["a"]': {"page": "a", "n": 6}})
        live.send("clicks", event)
        live.gives(lambda: live.table("w"), {'["a"]': {"page": "a", "n": 8}})
        assert [row and row["n"] for _, row in live.records("v")] == [2, 2, 2, 2]
    finally:
        upkeep.close()


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (
            view("avg(price) AS mean", accumulation="discard"),
            "'mean' is neither a count nor a sum",
        ),
        (view("count(*) AS n, max(price) AS top", ledger="top"), "'top' is neither a count nor"),
        (view("count(*) AS n", trigger="when m > 3"), "trigger='when m > 3': .*'m'"),
        (view("count(*) AS n", trigger="when n + 1"), "not a condition"),
        (
            f"{STREAM}\napp.view('v', sql='SELECT page, count(*) AS n FROM clicks GROUP BY page', "
            "key='page', trigger='at the watermark')",
            "no time window, so that its rows are never final",
        ),
        (
            view("count(*) AS n", ledger="n").replace("window(at,", "window(price::TIMESTAMP,"),
            "its window is by a time without a watermark",
        ),
        (
            f"{STREAM}\napp.view('v', sql='SELECT page, price FROM clicks', key='page', "
            "trigger='every 3 events')",
            "does not group",
        ),
    ],
)
def test_a_query_that_does_not_fit_its_options_is_refused(
    planned: PlanOf, body: str, problem: str
) -> None:
    with pytest.raises(PipelineError, match=problem):
        planned(body)


def test_a_plan_has_the_trigger_and_the_additive_columns(planned: PlanOf) -> None:
    select = "count(*) AS n, sum(price) + 0 AS more, CAST(sum(price) AS INT) AS whole"
    plan = planned(view(select, trigger="every 10 seconds", ledger="N"))["v"].plan
    assert plan.output is not None
    assert plan.output.text == "every 10 seconds; a row has all events so far"
    assert plan.output.additive == ("n", "whole")
    assert plan.output.ledger == ("n",)
    assert plan.query_topic.endswith(".changes.v")
    assert plan.topic.endswith(".view.v")
    plain = planned(view(select))["v"].plan
    assert plain.output is None
    assert plain.query_topic == plain.topic
