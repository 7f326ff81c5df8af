"""How a plan describes a view's windows."""

from __future__ import annotations

from typing import Any

from millstream.analyze.row_state.row_state import has_row_states
from millstream.analyze.windows.session_window import SessionWindowSpec
from millstream.analyze.windows.time_window import TimeWindowSpec

BODY = """
schema = "city STRING, at TIMESTAMP, other TIMESTAMP"
app.stream("a", schema=schema, event_time="at", lateness="1 minute")
app.stream("b", schema=schema, event_time="at", lateness="5 minutes")
app.view("tumbling", key=["w"], sql="SELECT window(at, '1 minute') AS w, count(*) AS n FROM a "
         "GROUP BY window(at, '1 minute')")
app.view("start", key=["s"], sql="WITH x AS (SELECT at AS t FROM a) SELECT window.start AS s, "
         "count(*) AS n FROM x GROUP BY window(t, '1 minute', '1 minute', '15 seconds')")

@app.view(key=["window"])
def sliding(a: DataFrame, b: DataFrame) -> DataFrame:
    return b.union(a).groupBy(F.window("at", "1 hour", "7 minutes")).count()

@app.view(key=["w", "city"])
def session(a: DataFrame) -> DataFrame:
    return a.groupBy(F.session_window("at", "10 minutes").alias("w"), "city").count()

@app.view(key=["window"])
def by_stream_time(a: DataFrame) -> DataFrame:
    return a.groupBy(F.window("_received_at", "10 seconds")).count()

@app.view(key=["window"])
def by_another_time(a: DataFrame) -> DataFrame:
    return a.groupBy(F.window("other", "10 seconds")).count()

@app.view
def rows(a: DataFrame) -> DataFrame:
    return a.select("city")
"""
A, BOTH = {"a": 60_000}, {"a": 60_000, "b": 300_000}
MINUTE = 60_000


def test_a_plan_describes_windows_triggers_and_eviction(planned: Any) -> None:
    plans = {name: query.plan for name, query in planned(BODY).items()}
    assert {name: plan.window_spec for name, plan in plans.items()} == {
        "tumbling": TimeWindowSpec("a", "event", A, MINUTE, MINUTE),
        "start": TimeWindowSpec("a", "event", A, MINUTE, MINUTE, 15_000),
        "sliding": TimeWindowSpec("a", "event", BOTH, 60 * MINUTE, 7 * MINUTE),
        "session": SessionWindowSpec("a", "event", A, 10 * MINUTE),
        "by_stream_time": TimeWindowSpec("a", "stream", {"a": 0}, 10_000, 10_000),
        "by_another_time": None,
        "rows": None,
    }
    texts = {name: plan.window_spec.text for name, plan in plans.items() if plan.window_spec}
    assert texts["tumbling"] == "tumbling, 1 minute, by event time of a"
    assert texts["sliding"] == "sliding, 1 hour every 7 minutes, by event time of a, b"
    assert texts["by_stream_time"] == "tumbling, 10 seconds, by stream time of a"
    assert plans["tumbling"].eviction == (
        "a window's state is deleted 1 hour 2 minutes after its end, by event time;"
        " it is closed to late events 1 minute after its end"
    )
    assert plans["sliding"].eviction.startswith(
        "a window's state is deleted 1 hour 6 minutes after its end, by event time of the slowest"
        " stream: a stream without events holds it back;"
    )
    assert plans["by_stream_time"].eviction == (
        "a window's state is deleted 1 hour 1 minute after its end, by stream time"
    )
    assert plans["by_another_time"].eviction.startswith("never: the window is not by")
    final = {plan.name for plan in plans.values() if has_row_states(plan)}
    assert final == {"tumbling", "sliding", "session", "by_stream_time"}
    assert plans["tumbling"].trigger.startswith("every change")
    assert plans["rows"].trigger.startswith("every event")
    assert plans["rows"].eviction == "nothing is kept"


def test_a_plan_says_that_having_removes_no_row(planned: Any) -> None:
    counted = "SELECT city, count(*) AS n FROM a GROUP BY city"
    windows = "SELECT session_window(at, '1 minute') AS w, city, count(*) AS n FROM a GROUP BY 1, 2"
    plans = planned(f"""
app.stream("a", schema="city STRING, at TIMESTAMP", event_time="at")
app.view("few", key=["city"], sql="{counted} HAVING n < 3")
app.view("some", key=["city"], sql="SELECT city, n FROM ({counted}) WHERE n < 3")
app.view("bern", key=["city"], sql="{counted} HAVING city = 'Bern'")
app.view("all", key=["city"], sql="{counted}")
app.view("final", key=["w", "city"], sql="{windows} HAVING n < 3")
""")
    found = {name for name, query in plans.items() if "stays as it last was" in query.plan.trigger}
    assert found == {"few", "some"}
