"""A view that sheds counts the same after restarts and in batch."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame

from millstream.analyze.monitor.lag import LagMonitor
from millstream.analyze.planning import reading
from millstream.analyze.recovery.checkpoint import edition_folder
from millstream.analyze.recovery.checkpoint_notes import read_notes, write_notes
from millstream.analyze.recovery.shed_ranges import ShedRange, is_kept, sample
from millstream.analyze.shedding.governor import Shedding
from millstream.analyze.spark.catalyst import Catalyst, leaves
from millstream.analyze.verify.result import VerifyResult
from millstream.analyze.verify.verify import verify
from millstream.log.topic_names import stream_topic
from millstream.pipeline.app import App

STREAM = """
app.stream("orders", schema="id LONG, city STRING, amount DOUBLE, at TIMESTAMP", event_time="at",
           lateness="1 hour")
"""
VIEWS = """
@app.view(key=["window", "city"], shed="30 seconds", mode="micro_batch")
def by_hour(orders: DataFrame) -> DataFrame:
    return orders.groupBy(F.window("at", "1 hour"), "city").agg(
        F.count("*").alias("n"), F.sum("amount").alias("total"), F.avg("amount").alias("mean"))

app.view("by_city", key=["hour", "city"], shed="30 seconds", mode="real_time",
         sql="SELECT hour(at) AS hour, city, count(*) AS n FROM orders GROUP BY hour(at), city")
"""
CITIES = ("Bern", "Ghent", "Kyoto")


def orders(start: int, count: int, hour: int) -> list[dict[str, Any]]:
    return [
        {
            "id": number,
            "city": CITIES[number % 3],
            "amount": 10.0 + number % 7,
            "at": f"2026-01-01T0{hour}:00:00Z",
        }
        for number in range(start, start + count)
    ]


def newest(live: Any, view: str) -> dict[tuple[int, str], dict[str, Any]]:
    """By hour and city, the row with the most events in it."""
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    for _, row in live.records(view):
        hour = row["hour"] if "hour" in row else int(row["window"]["start"][11:13])
        held = rows.get((hour, row["city"]))
        if held is None or row["_revision"] > held["_revision"]:
            rows[hour, row["city"]] = row
    return rows


def adds_up(live: Any, view: str, logged: int) -> bool:
    """Whether each logged event is in a row, or counted as shed."""
    held = sum(row["_revision"] for row in newest(live, view).values())
    return bool(held + live.queries.counts()[view].shed == logged)


def change_share(live: Any, share: int) -> None:
    views = ("by_hour", "by_city")
    live.until(lambda: all(live.queries.state_of(view)[0] == "running" for view in views))
    for view in views:
        live.queries.change_share(view, share)
    live.until(
        lambda: all(
            (each.state, each.share) == ("running", share / 1000)
            for each in live.queries.counts().values()
        )
    )


@pytest.fixture
def begun(live: Any, pipeline: Any) -> App:
    """The running pipeline, with its first events processed."""
    app: App = pipeline(STREAM + VIEWS)
    live.start(app)
    live.send("orders", *orders(0, 300, hour=0))
    live.until(lambda: all(adds_up(live, view, 300) for view in ("by_hour", "by_city")))
    return app


@pytest.mark.timeout(400)
def test_rows_and_shed_events_add_up_after_a_restart_and_in_batch(live: Any, begun: App) -> None:
    change_share(live, 250)
    live.send("orders", *orders(300, 900, hour=1))
    live.until(lambda: all(adds_up(live, view, 1200) for view in ("by_hour", "by_city")))
    live.stop()
    live.start(begun)
    assert {each.share for each in live.queries.counts().values()} == {0.25}
    live.send("orders", *orders(1200, 300, hour=1))
    live.until(lambda: all(adds_up(live, view, 1500) for view in ("by_hour", "by_city")))
    change_share(live, 1000)
    live.send("orders", *orders(1500, 300, hour=2))
    live.until(lambda: all(adds_up(live, view, 1800) for view in ("by_hour", "by_city")))

    topic = stream_topic(begun.name, "orders")
    kept = Counter(CITIES[n % 3] for n in range(300, 1500) if is_kept(topic, 0, n, 250))
    for view in ("by_hour", "by_city"):
        rows = newest(live, view)
        assert live.queries.counts()[view].shed == 1200 - kept.total()
        for city in CITIES:
            for hour in (0, 2):
                assert rows[hour, city]["n"] == 100
                assert set(rows[hour, city]["_error"].values()) == {0.0}
            sampled = rows[1, city]
            assert sampled["_revision"] == kept[city]
            assert sampled["n"] == kept[city] * 4
            assert 0 < abs(sampled["n"] - 400) + 1 < sampled["_error"]["n"] * 2
        query = next(each for each in live.planned if each.view.name == view)
        checkpoints = live._home / "checkpoints"
        verdict = verify(query, live.settings.log, checkpoints=checkpoints, patience=60)
        assert (verdict.same, verdict.differences, verdict.moving) == (9, [], 0)
    row = newest(live, "by_hour")[1, "Bern"]
    assert row["total"] == pytest.approx(row["n"] * row["mean"])
    assert row["mean"] == pytest.approx(13, abs=2 * row["_error"]["mean"])


def test_a_sample_is_read_in_batches_of_the_full_size(planned: Any) -> None:
    query = planned(STREAM + VIEWS)["by_hour"]
    (topic,) = query.plan.reads
    spans = [ShedRange(topic, 0, 100, 200, 10, 0), ShedRange(topic, 0, 200, None, 250, 0)]
    assert at_once(sample(query.rows, spans)) == 4 * at_once(query.rows)
    assert at_once(sample(query.rows, spans[:1])) == at_once(query.rows)


def at_once(frame: DataFrame) -> int:
    (leaf,) = leaves(Catalyst.of(frame).analysed(frame))
    return int(leaf.extraOptions().get("maxOffsetsPerTrigger"))


@pytest.mark.timeout(400)
def test_verify_uses_a_share_that_changed_while_it_waited(live: Any, begun: App) -> None:
    live.stop()
    live.send("orders", *orders(300, 600, hour=1))
    query = next(each for each in live.planned if each.view.name == "by_hour")
    checkpoints, (topic,) = live._home / "checkpoints", query.plan.reads
    waits = threading.Event()

    def compare() -> VerifyResult:
        return verify(
            *(query, live.settings.log),
            checkpoints=checkpoints,
            patience=120,
            report=lambda words: waits.set() if words.startswith("waiting") else None,
        )

    with ThreadPoolExecutor(1) as pool:
        verdict = pool.submit(compare)
        assert waits.wait(60)
        folder = edition_folder(checkpoints, query.plan.topic, "by_hour") / query.plan.generation
        shed = (ShedRange(topic, 0, 500, None, 250, 0),)
        write_notes(folder, msgspec.structs.replace(read_notes(folder), shed=shed))
        live.start(begun)
        live.until(verdict.done)
    assert (verdict.result().differences, verdict.result().same) == ([], 6)


@pytest.mark.timeout(400)
def test_a_view_that_falls_behind_sheds_until_it_has_caught_up(
    live: Any, pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_MAX_SHED_BATCH", 200)
    app = pipeline(
        f"""
import time
{STREAM}
@F.udf(returnType="string", useArrow=False)
def slow(city):
    time.sleep(0.005)
    return city

@app.view(key=["hour", "city"], shed="5 seconds")
def by_city(orders: DataFrame) -> DataFrame:
    return (orders.select(F.hour("at").alias("hour"), slow("city").alias("city"))
                  .groupBy("hour", "city").agg(F.count("*").alias("n")))
"""
    )
    live.start(app)
    live.send("orders", *orders(0, 3, hour=0))
    lags = LagMonitor(app.name, live.settings.log, [each.plan for each in live.planned])
    shedding, shares = Shedding(live.queries, lags), list[float]()

    def has_got_to(logged: int) -> bool:
        counts = lags.add_to(live.queries.counts())["by_city"]
        shedding.tick(each.plan for each in live.planned)
        if not shares or shares[-1] != counts.share:
            shares.append(counts.share)
        return counts.state == "running" and counts.share == 1 and adds_up(live, "by_city", logged)

    try:
        live.until(lambda: has_got_to(3))
        live.until(lambda: (lag := lags.of("by_city")) is not None and lag.read == 3)
        live.send("orders", *orders(3, 6000, hour=1))
        sent = time.monotonic()
        live.until(lambda: has_got_to(6003), seconds=240)
        assert time.monotonic() - sent > 5
        assert len(shares) >= 3, "it never took less than all"
        assert shares[0] == shares[-1] == 1.0
        assert min(shares) < 0.9
        live.send("orders", *orders(6003, 30, hour=2))
        live.until(lambda: has_got_to(6033))
        rows = newest(live, "by_city")
        counts = live.queries.counts()["by_city"]
        assert 0 < counts.shed < 6000
        for city in CITIES:
            assert rows[1, city]["n"] == pytest.approx(2000, abs=2 * rows[1, city]["_error"]["n"])
            assert (rows[2, city]["n"], rows[2, city]["_error"]) == (10, {"n": 0.0})
    finally:
        lags.close()
