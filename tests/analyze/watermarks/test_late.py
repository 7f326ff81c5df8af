"""The log decides which events are late, whenever they are read."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from millstream.analyze.recovery.progress import dropped_by_watermark
from millstream.log.topic_names import stream_topic
from millstream.testing import Logged, run
from millstream.values.event import WATERMARK

MINUTE = 60_000
START = time.time_ns() // 1_000_000 // MINUTE * MINUTE - 60 * MINUTE  # an hour ago, to the minute
STREAMS = """
app.stream("clicks", schema="page STRING, at TIMESTAMP", event_time="at", lateness="2 minutes")
app.stream("taps", schema="page STRING, at TIMESTAMP", event_time="at", lateness="0 seconds")
"""
VIEWS = """
app.view("minutes", key=["window"], mode="real_time",
         sql="SELECT window(at, '1 minute') AS window, "
         "concat_ws('', sort_array(collect_list(page))) AS pages FROM clicks GROUP BY 1")

@app.view(key=["window"], mode="real_time")
def overlapping(clicks: DataFrame) -> DataFrame:
    both = clicks.groupBy(F.window("at", "2 minutes", "1 minute"))
    return both.agg(F.concat_ws("", F.sort_array(F.collect_list("page"))).alias("pages"))

@app.view(key=["window", "length"])
def visits(clicks: DataFrame) -> DataFrame:
    session, length = F.session_window("at", "2 minutes"), F.length("page").alias("length")
    pages = F.concat_ws("", F.sort_array(F.collect_list("page"))).alias("pages")
    sessions = clicks.groupBy(session.alias("window"), length).agg(pages)
    return sessions.select("window", "pages", "length")

app.view("pages", sql="SELECT page, at FROM clicks")
app.view("chained", key=["window"], mode="micro_batch", sql="WITH some AS (SELECT * FROM pages) "
         "SELECT window(at, '1 minute') AS window, count(*) AS n FROM some GROUP BY 1")

@app.view(key=["window"], mode="micro_batch")
def together(clicks: DataFrame, taps: DataFrame) -> DataFrame:
    both = clicks.unionByName(taps).groupBy(F.window("at", "1 minute"))
    return both.agg(F.concat_ws("", F.sort_array(F.collect_list("page"))).alias("pages"))
"""


def event(page: str, minutes: float) -> dict[str, Any]:
    return {"page": page, "at": START + round(minutes * MINUTE)}


# Each event with its watermark in minutes, or None if it came in order.
CLICKS = [
    (event("a", 0.5), None),
    (event("b", 3.5), None),
    (event("c", 0.6), 2.99),  # within the lateness of its minute
    (event("d", 0.7), 3.0),  # too late for it, but not for the two minutes that begin with it
    (event("e", 0.8), 3.5),
    (event("f", 0.9), 4.0),
    (event("k", 0.6), 5.0),  # too late for the session that it would be alone in, too
    (event("future", 60 + 24 * 60), None),
]
TAPS = [(event("x", 0.5), None), (event("y", 0.6), 0.99), (event("z", 0.7), 1.0)]
MORE = [
    *((event("g", 0.95), 3.5), (event("h", 0.95), 2.5), (event("i", 3.9), None)),
    (event("j", 50), None),
]
EXPECTED: dict[str, dict[int, Any]] = {
    "minutes": {0: "ach", 3: "bi", 50: "j"},
    "overlapping": {-1: "ach", 0: "acdegh", 2: "bi", 3: "bi", 49: "j", 50: "j"},
    "chained": {0: 3, 3: 2, 50: 1},
    "together": {0: "achxy", 3: "bi", 50: "j"},
    "visits": {0: "acdefgh", 3: "bi", 50: "j"},
}


def send(live: Any, stream: str, events: list[tuple[dict[str, Any], float | None]]) -> None:
    for value, behind in events:
        headers = [("ce_id", b"1"), *([(WATERMARK, written(behind))] if behind else [])]
        live._producer.produce(
            stream_topic(live.app.name, stream), json.dumps(value), "k", headers=headers
        )
    assert live._producer.flush(10) == 0


def written(minutes: float) -> bytes:
    return str(START + round(minutes * MINUTE)).encode()


def by_minute(rows: Any) -> dict[int, Any]:
    found = {}
    for row in rows:
        start = datetime.fromisoformat(row.pop("window")["start"]).timestamp() * 1000
        found[int((start - START) // MINUTE)] = next(iter(row.values()))
    return found


def test_the_log_decides_which_events_are_late_and_a_restart_changes_nothing(
    live: Any, pipeline: Any
) -> None:
    app = pipeline(STREAMS + VIEWS)
    live.start(app)
    send(live, "clicks", CLICKS)
    send(live, "taps", TAPS)
    live.gives(lambda: by_minute(live.table("minutes").values()), {0: "ac", 3: "b"})
    live.until(lambda: live.queries.settled)
    # Past a commit: from here on Spark's own watermark is past the first minute.
    running = [view.running for view in live.queries._views.values()]
    live.until(lambda: all(query.lastProgress for query in running))
    live.stop()
    live.start(app)
    send(live, "clicks", MORE)
    # A session's row comes when the session is over, which no event after the last one says.
    final = {start: pages for start, pages in EXPECTED["visits"].items() if start < 50}
    for view, expected in {**EXPECTED, "visits": final}.items():
        live.gives(lambda view=view: by_minute(live.table(view).values()), expected)
    assert "future" not in {row["page"] for row in live.stream("pages")}
    running = [view.running for view in live.queries._views.values()]
    assert sum(map(dropped_by_watermark, running)) == 0


def as_logged(events: list[tuple[dict[str, Any], float | None]]) -> list[Logged]:
    start = datetime.fromtimestamp(START / 1000, UTC)
    received = start + timedelta(hours=1)
    return [
        Logged(value, received, start + timedelta(minutes=behind) if behind else None)
        for value, behind in events
    ]


@pytest.mark.usefixtures("spark")
def test_a_batch_over_the_same_events_gives_the_same_rows(pipeline: Any) -> None:
    app = pipeline(STREAMS + VIEWS)
    views = run(app, {"clicks": as_logged(CLICKS + MORE), "taps": as_logged(TAPS)})
    assert {view: by_minute(views[view]) for view in EXPECTED} == EXPECTED
    assert "future" not in {row["page"] for row in views["pages"]}


SUBQUERIES = """
def counted(events: DataFrame) -> DataFrame:
    return events.groupBy(F.window("at", "1 minute")).agg(F.count("*").alias("n"))

@app.view
def side_by_side(clicks: DataFrame, taps: DataFrame) -> DataFrame:
    return counted(clicks).join(counted(taps).withColumnRenamed("n", "m"), "window")

@app.view
def one_after_another(clicks: DataFrame, taps: DataFrame) -> DataFrame:
    return counted(clicks).union(counted(taps))

@app.view(key=["window"])
def most(clicks: DataFrame) -> DataFrame:
    hours = counted(clicks).groupBy(F.window(F.window_time("window"), "1 hour"))
    return hours.agg(F.max("n").alias("n"))
"""


def test_windows_in_subqueries_leave_out_late_events_too(pipeline: Any, planned: Any) -> None:
    for name, query in planned(STREAMS + SUBQUERIES).items():
        found = {(spec.size_ms, *spec.lateness_by_stream) for spec in query.plan.late_by_window}
        expected = {(MINUTE, "clicks")} | ({(MINUTE, "taps")} if name != "most" else set())
        assert found == expected, name
        assert query.plan.late_by_event_time == {}
    views = run(
        pipeline(STREAMS + SUBQUERIES), {"clicks": as_logged(CLICKS), "taps": as_logged(TAPS)}
    )
    assert [(row["n"], row["m"]) for row in views["side_by_side"]] == [(2, 2)]
    assert sorted(row["n"] for row in views["one_after_another"]) == [1, 2, 2]
    assert max(row["n"] for row in views["most"]) == 2
