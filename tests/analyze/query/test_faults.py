"""Queries recover after faults of Kafka and of the disk, and their rows are exact."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.collect.small_disks import small_disk

from millstream.analyze.planning import planner
from millstream.analyze.query import query_start
from millstream.analyze.records.reader import kafka_options
from millstream.log.broker import Broker

VIEWS = """
app.stream("orders", schema="id LONG, city STRING")
app.view("live", key=["city"], mode="real_time",
         sql="SELECT city, count(*) AS n FROM orders GROUP BY city")
app.view("batch", key=["city"], mode="micro_batch",
         sql="SELECT city, count(*) AS n FROM orders GROUP BY city")
"""
IMPATIENT = {
    "kafka.request.timeout.ms": "2000",
    "kafka.default.api.timeout.ms": "3000",
    "kafka.max.block.ms": "2000",
}


def counted(live: Any, view: str) -> dict[str, int]:
    return {row["city"]: row["n"] for row in live.table(view).values()}


def send(live: Any, sent: Counter[str], count: int) -> None:
    cities = [f"c{number % 7}" for number in range(count)]
    live.send("orders", *({"id": i, "city": city} for i, city in enumerate(cities)))
    sent.update(cities)


@pytest.mark.timeout(300)
def test_queries_recover_after_kafka_did_not_answer_for_longer_than_the_timeouts(
    live: Any, pipeline: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = kafka_options
    for module in (planner, query_start):
        monkeypatch.setattr(module, "kafka_options", lambda log: {**options(log), **IMPATIENT})
    live.start(pipeline(VIEWS))
    sent = Counter[str]()
    send(live, sent, 70)
    for view in ("live", "batch"):
        live.gives(lambda view=view: counted(live, view), sent)
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        live.until(lambda: live.queries.counts()["batch"].restarts)
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    send(live, sent, 70)
    for view in ("live", "batch"):
        live.gives(lambda view=view: counted(live, view), sent)


@pytest.mark.timeout(300)
def test_queries_recover_after_the_disk_of_the_checkpoints_was_full(
    live: Any, pipeline: Any, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "home", 4 << 20) as disk:
        live.start(pipeline(VIEWS))
        sent = Counter[str]()
        send(live, sent, 70)
        for view in ("live", "batch"):
            live.gives(lambda view=view: counted(live, view), sent)
        disk.fill()
        send(live, sent, 70)
        live.until(lambda: all(each.restarts for each in live.queries.counts().values()))
        assert "space" in live.queries.counts()["batch"].error
        disk.make_room()
        send(live, sent, 70)
        for view in ("live", "batch"):
            live.gives(lambda view=view: counted(live, view), sent)
        live.stop()
