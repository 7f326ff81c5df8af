"""A view's state, as Spark's reader reads it from the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millstream.analyze.monitor.state import find_checkpoint, read_state
from millstream.cli.invoke import invoke
from millstream.errors import MillstreamError
from millstream.log.topic_names import stream_topic

START = 1_794_798_000_000  # a full hour, in milliseconds


@pytest.mark.timeout(400)
def test_the_state_of_a_view_shows_each_key_with_its_running_values(
    live: Any,
    pipeline: Any,
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    live.start(
        pipeline("""
app.stream("orders", schema="id LONG, city STRING, amount INT, at TIMESTAMP", event_time="at")
app.view("hourly", key=["window", "city"], mode="real_time",
         sql="SELECT window(at, '1 hour') AS window, city, sum(amount) AS total FROM orders "
             "GROUP BY window(at, '1 hour'), city")
@app.view(mode="micro_batch")
def ids(orders: DataFrame) -> DataFrame:
    return orders.select("id").dropDuplicates(["id"])

app.view("all", sql="SELECT id FROM orders")
""")
    )
    events = [
        {"id": number % 7, "city": city, "amount": number, "at": START + number}
        for number, city in enumerate(["Bern", "Lyon", "Bern", "Köln"] * 5)
    ]
    live.send("orders", *events)
    topic = stream_topic(live.app.name, "orders")
    live.until(
        lambda: all(
            each.read.get(topic, {}).get("0") == 20 for each in live.queries.counts().values()
        )
    )
    checkpoints = live._home / "checkpoints"

    # While the query runs: as of its newest commit.
    found = read_state(spark, find_checkpoint(checkpoints, "hourly"), "hourly")
    (groups,) = found.operators
    totals = {entry.key["city"]: entry.value["sum"] for entry in groups.entries}
    assert (groups.name, groups.keys) == ("groups", 3)
    assert totals == {"Bern": 90, "Lyon": 45, "Köln": 55}
    assert {entry.key["window"]["start"] for entry in groups.entries} == {
        "2026-11-16T03:00:00.000Z"
    }
    assert found.committed_at > START

    one = read_state(spark, find_checkpoint(checkpoints, "hourly"), "hourly", ["Köln"])
    assert [entry.value["sum"] for entry in one.operators[0].entries] == [55]
    none = read_state(spark, find_checkpoint(checkpoints, "hourly"), "hourly", ["Rom"])
    assert (none.operators[0].keys, none.operators[0].entries) == (0, [])

    seen = read_state(spark, find_checkpoint(checkpoints, "ids"), "ids", limit=5)
    assert (seen.operators[0].keys, len(seen.operators[0].entries)) == (7, 5)

    capsys.readouterr()
    assert invoke(["state", "hourly", "Lyon", "--json", "--home", str(live._home)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["operators"][0]["entries"][0]["value"]["sum"] == 45
    assert invoke(["state", "hourly", "--home", str(live._home)]) == 0
    shown = capsys.readouterr().out
    assert "view hourly as of batch " in shown
    assert "Köln" in shown

    with pytest.raises(MillstreamError, match="view all keeps no state: each of its rows"):
        find_checkpoint(checkpoints, "all")
    with pytest.raises(MillstreamError, match="no view by_town has run here; there are all, hour"):
        find_checkpoint(checkpoints, "by_town")
    with pytest.raises(MillstreamError, match="no view all has run here; no view has run"):
        find_checkpoint(tmp_path / "elsewhere", "all")
