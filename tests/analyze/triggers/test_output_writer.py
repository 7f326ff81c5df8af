"""Output writers with a real Kafka; some are killed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.analyze.triggers.run_output_writer import task
from tests.conftest import Eventually

from millstream import App
from millstream.analyze.triggers.output_writer import OutputWriter
from millstream.log.connection import client_config
from millstream.log.consumer import bounds, read_range
from millstream.log.settings import LogSettings
from millstream.pipeline.pipeline_topics import ensure_topics, recreate_topic
from millstream.pipeline.trigger import Accumulation
from millstream.values.ledger_entry import decode, sums

KEYS, KILLS = ("a", "b", "c"), 3
WINDOW = {"start": "1970-01-01T00:00:00.000000Z", "end": "1970-01-01T00:00:10.000000Z"}


class View:
    """A view `v` whose query is the test."""

    def __init__(self, log: LogSettings, name: str, **options: Any) -> None:
        self.log, self.app = log, App(name)
        self.app.stream("s", schema="at TIMESTAMP, k STRING", event_time="at")
        sql = "SELECT window(at, '10 seconds') AS window, k, count(*) AS n FROM s GROUP BY 1, 2"
        self.app.view("v", sql=sql, key=["window", "k"], ledger=["n"], **options)
        ensure_topics(self.app, log)
        self._producer = Producer(client_config(log, linger_ms=5))
        self._written = "changes" if self.app.views["v"].has_output_options else "view"

    def give(self, key: str, revision: int, **more: Any) -> None:
        row = {"window": WINDOW, "k": key, "n": revision, "total": 0.5, "_revision": revision}
        topic = f"{self.app.name}.{self._written}.v"
        self._producer.produce(topic, json.dumps({**row, **more}), json.dumps([key]))

    def give_all(self, revision: int, **more: Any) -> None:
        for key in KEYS:
            self.give(key, revision, **more)
        self.flush()

    def flush(self) -> None:
        assert self._producer.flush(30) == 0

    def read(self, kind: str) -> list[Any]:
        return [json.loads(value) for value in self.values(kind)]

    def values(self, kind: str) -> list[bytes]:
        topic = f"{self.app.name}.{kind}.v"
        return [
            record.value or b"null"
            for partition, (first, end) in bounds(self.log, topic).items()
            if first < end
            for record in read_range(self.log, topic, partition, first, end)
        ]

    def balance(self) -> dict[str, int]:
        entries = [decode(value) for value in self.values("ledger")]
        assert len({entry.id for entry in entries}) == len(entries), "no entry twice"
        return {key[0]: int(amounts["n"]) for key, amounts in sums(entries).values()}


Start = Callable[..., OutputWriter]


@pytest.fixture
def start(log_settings: LogSettings, app_name: str) -> Iterator[Start]:
    writers = []

    def start_one(trigger: str | None, accumulation: Accumulation) -> OutputWriter:
        writers.append(OutputWriter(log_settings, task(app_name, trigger, accumulation, True)))
        return writers[-1]

    yield start_one
    for writer in writers:
        writer.close()


def test_a_writer_that_is_killed_repeatedly_writes_everything_once(
    log_settings: LogSettings, app_name: str, eventually: Eventually
) -> None:
    view = View(log_settings, app_name, accumulation="retract")
    chance = random.Random(1)
    script = Path(__file__).with_name("run_output_writer.py")
    command = [sys.executable, str(script), log_settings.bootstrap, app_name]
    revision = 0
    for life in range(KILLS):
        if life == KILLS // 2:
            view.give_all(revision, _state="final")
        before = len(view.read("view"))
        process = subprocess.Popen(command)
        try:
            while len(view.read("view")) == before:  # many small transactions, one after the other
                revision += 1
                view.give_all(revision)
            time.sleep(chance.random() * 0.05)  # anywhere in one of them
        finally:
            process.kill()
            process.wait()
    process = subprocess.Popen(command)
    try:
        for repeated in range(1, revision + 2):  # the query, too, begins again
            view.give_all(repeated)
        eventually(lambda: view.balance() == {key: revision + 1 for key in KEYS})
    finally:
        process.kill()
        process.wait()
    shown: dict[str, list[Any]] = defaultdict(list)
    for row in view.read("view"):
        shown[row["k"]].append(row)
    for rows in shown.values():
        added = [row for row in rows if "_kind" not in row]
        taken = [row for row in rows if "_kind" in row]
        assert [{**row, "_kind": "retraction"} for row in added[:-1]] == taken
        states = [row.get("_state") for row in added]
        assert states.count("final") == 1
        assert states.index("final") < states.index("corrected")
        revisions = [row["n"] for row in added if row.get("_state") != "final"]
        assert revisions == sorted(set(revisions)), "no row twice"
        assert revisions[-1] == revision + 1


def test_a_view_without_a_trigger_can_have_a_ledger(
    log_settings: LogSettings, app_name: str, start: Start, eventually: Eventually
) -> None:
    view = View(log_settings, app_name)
    for revision in (1, 2):
        view.give("a", revision)
    view.give("a", 2, _state="final")
    view.flush()
    writer = start(None, "accumulate")
    eventually(lambda: view.balance() == {"a": 2})
    writer.close()
    start(None, "accumulate")
    view.give("a", 2, _state="final")
    view.give("a", 3, _late=["s/0/7"])
    view.give("a", 3, _late=["s/0/7"], _state="corrected")
    view.flush()
    eventually(lambda: view.balance() == {"a": 3})
    reasons = [each["reason"] for each in view.read("ledger")]
    assert reasons == [[], ["s/0/7"], ["s/0/7"]]


def test_the_writer_follows_the_query_into_a_topic_that_was_created_again(
    log_settings: LogSettings, app_name: str, start: Start, eventually: Eventually
) -> None:
    view = View(log_settings, app_name, trigger="every 2 events")
    start("every 2 events", "accumulate")
    for revision in range(1, 6):
        view.give("a", revision)
    view.flush()
    eventually(lambda: [row["n"] for row in view.read("view")] == [2, 4])
    recreate_topic(view.app, log_settings, "v")
    for revision in range(1, 4):
        view.give("a", revision)
    view.flush()
    eventually(lambda: [row["n"] for row in view.read("view")] == [2])
