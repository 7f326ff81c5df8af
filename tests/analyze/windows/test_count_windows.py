"""Count windows give the same rows live, after a restart, and in batch."""

from __future__ import annotations

import random
from typing import Any

import pytest

from millstream.errors import PipelineError
from millstream.testing import run

STREAM = """
from millstream import windows
app.stream("riders", schema="city STRING, speed LONG, at TIMESTAMP", event_time="at", key="city")
"""
VIEWS = """
@app.view
def each_ten(riders: DataFrame) -> DataFrame:
    tens = riders.groupBy("city", windows.by_count(10))
    return tens.agg(F.avg("speed").alias("speed"), F.count("*").alias("n"),
                    (F.max("speed") - F.min("speed")).alias("spread"))

app.view("newest", key=["town"], sql="SELECT upper(city) AS town, count_window(4, 2) AS numbers, "
         "sum(speed) AS total, first(speed) AS first FROM riders WHERE speed >= 0 "
         "GROUP BY upper(city), count_window(4, 2)")

@app.view
def fast(each_ten: DataFrame) -> DataFrame:
    return each_ten.filter("speed >= 50").select("city", "window.end", "speed")
"""


def riders(count: int, seed: int = 3) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [
        {"city": rng.choice(["Bern", "Lyon"]), "speed": rng.randrange(100), "at": 1_794_000_000 + n}
        for n in range(count)
    ]


def by_city(sent: list[dict[str, Any]]) -> dict[str, list[int]]:
    cities: dict[str, list[int]] = {}
    for each in sent:
        cities.setdefault(each["city"], []).append(each["speed"])
    return cities


def tens(sent: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of `each_ten`, in plain Python, in the order in which they come."""
    rows, held = [], dict[str, list[int]]()
    for each in sent:
        speeds = held.setdefault(each["city"], [])
        speeds.append(each["speed"])
        if len(speeds) % 10 == 0:
            window, ten = {"start": len(speeds) - 10, "end": len(speeds)}, speeds[-10:]
            rows.append(
                {
                    "city": each["city"],
                    "window": window,
                    "speed": sum(ten) / 10,
                    "n": 10,
                    "spread": max(ten) - min(ten),
                }
            )
    return rows


def newest(sent: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    rows = {}
    for city, speeds in by_city(sent).items():
        end = len(speeds) // 2 * 2
        last = speeds[end - 4 : end]
        numbers = {"start": end - 4, "end": end}
        rows[city.upper()] = {
            "town": city.upper(),
            "numbers": numbers,
            "total": sum(last),
            "first": last[0],
        }
    return rows


def fast(sent: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = [row for row in tens(sent) if row["speed"] >= 50]
    return [{"city": r["city"], "end": r["window"]["end"], "speed": r["speed"]} for r in rows]


def test_each_full_window_gives_one_row_after_a_restart_too(live: Any, pipeline: Any) -> None:
    app = pipeline(STREAM + VIEWS)
    sent = riders(600)
    live.start(app)
    live.send("riders", *sent[:300])
    live.gives(lambda: live.stream("each_ten"), tens(sent[:300]))
    live.stop()
    live.send("riders", *sent[300:450])
    live.start(app)
    live.send("riders", *sent[450:])
    live.gives(lambda: live.stream("each_ten"), tens(sent))
    live.gives(lambda: {r["town"]: r for r in live.table("newest").values()}, newest(sent))
    live.gives(lambda: live.stream("fast"), fast(sent))
    plans = {query.view.name: query.plan for query in live.planned}
    assert {plan.mode for plan in plans.values()} == {"real_time"}
    assert plans["each_ten"].window_spec.text == "count, 10 events, in the order of riders"
    assert plans["newest"].window_spec.text == "count, 4 events every 2, in the order of riders"
    assert plans["each_ten"].trigger.startswith("when a window is full")
    assert "the newest 10 events" in plans["each_ten"].eviction
    assert plans["each_ten"].lineage == "position"
    assert plans["newest"].lineage == "revision"


@pytest.mark.usefixtures("spark")
def test_a_batch_gives_the_same_windows(pipeline: Any) -> None:
    sent = riders(95)
    views = run(pipeline(STREAM + VIEWS), {"riders": sent})
    assert views["each_ten"] == tens(sent)
    assert views["newest"] == list(newest(sent).values())
    assert views["fast"] == fast(sent)


MISTAKES = {
    "a function that has no plain form": (
        "riders.groupBy('city', windows.by_count(3)).agg(F.collect_list('speed').alias('s'))",
        "collect_list() is not available over a window by count",
    ),
    "DISTINCT": (
        "riders.groupBy(windows.by_count(3)).agg(F.count_distinct('city').alias('n'))",
        "supports neither DISTINCT nor FILTER",
    ),
    "no grouping": (
        "riders.select('city', windows.by_count(3))",
        "is not a column: group by it",
    ),
    "no number": (
        "riders.groupBy(windows.by_count(0)).count()",
        "a window by count has size 0; write a number of events from 1 to 100,000",
    ),
    "micro-batches": (
        "riders.withColumn('x', F.udf(lambda n: n, 'long', useArrow=False)('speed'))"
        ".groupBy(windows.by_count(3)).agg(F.sum('x').alias('x'))",
        "only real-time mode counts one by one: it calls a Python function",
    ),
}


@pytest.mark.parametrize(("query", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_unsupported_queries_are_refused_with_the_reason(
    planned: Any, query: str, message: str
) -> None:
    body = f"{STREAM}\n@app.view\ndef v(riders: DataFrame) -> DataFrame:\n    return {query}\n"
    with pytest.raises(PipelineError) as raised:
        planned(body)
    assert message in str(raised.value)
    assert raised.value.line


def test_events_of_a_group_in_several_partitions_cannot_be_counted(planned: Any) -> None:
    body = f"{STREAM}\napp.view('v', sql='SELECT count_window(3) AS w, count(*) AS n FROM riders "
    with pytest.raises(PipelineError, match="are in several partitions, without an order"):
        planned(f"{body}GROUP BY count_window(3)')", log={"partitions": 4})
    planned(f"{body}GROUP BY city, count_window(3)')", log={"partitions": 4})
