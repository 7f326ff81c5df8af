"""A pipeline that runs on the one Spark session against the one Kafka."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession
from tests.conftest import pauses

from millstream.analyze.planning.planned_query import PlannedQuery
from millstream.analyze.planning.planner import Planner
from millstream.analyze.query.queries import Queries
from millstream.analyze.settings import AnalyzeSettings
from millstream.analyze.upkeep import Upkeep
from millstream.analyze.watermarks.late_events import LateEvents
from millstream.errors import LogError
from millstream.log.connection import client_config
from millstream.log.consumer import bounds
from millstream.log.settings import LogSettings
from millstream.log.topic_names import stream_topic, view_topic
from millstream.log.topics import known_topics
from millstream.pipeline.app import App
from millstream.pipeline.load import load
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.settings import Settings
from millstream.syntax.duration import parse_duration
from millstream.values.report import ViewCounts

SETTINGS = AnalyzeSettings(checkpoint_interval="5 seconds")
HEAD = """
from pyspark.sql import DataFrame, functions as F
from millstream import App
app = App("{name}")
"""


class Load(Protocol):
    def __call__(self, body: str) -> App: ...


@pytest.fixture
def pipeline(tmp_path: Path, app_name: str) -> Load:
    """Loads the Python text of a pipeline; `app` is there already."""

    def read(body: str) -> App:
        file = tmp_path / "pipeline.py"
        file.write_text(HEAD.format(name=app_name) + body)
        return load(file)

    return read


class PlanOf(Protocol):
    def __call__(self, body: str, **settings: Any) -> dict[str, PlannedQuery]: ...


@pytest.fixture
def planned(spark: SparkSession, pipeline: Load) -> PlanOf:
    """The queries of a pipeline's views, by name."""

    def plan(body: str, **settings: Any) -> dict[str, PlannedQuery]:
        queries = Planner(spark, pipeline(body), Settings(**settings)).queries()
        return {query.view.name: query for query in queries}

    return plan


class RunningUpkeep:
    """The work beside Spark for some views, as the service does it."""

    def __init__(self, settings: Settings, app: App, queries: Iterable[PlannedQuery]) -> None:
        plans, idle = [query.plan for query in queries], parse_duration(settings.analyze.idle)
        self.late_events = LateEvents(settings.log, app, plans, idle)
        self.late_events.start()
        self._upkeep = Upkeep(settings.log, app, plans, self.late_events)

    def step(self, counts: dict[str, ViewCounts]) -> None:
        self._upkeep.update(counts)
        self._upkeep.tick()

    def close(self) -> None:
        self._upkeep.close()
        self.late_events.close()


class Live:
    """A pipeline that runs; every wait keeps its queries up, as the service does."""

    def __init__(self, spark: SparkSession, log: LogSettings, home: Path) -> None:
        self._spark = spark
        self._home = home
        self.settings = Settings(log=log, analyze=SETTINGS)
        # As the collector's: what is sent again does not come behind what was sent later.
        self._producer = Producer(client_config(log, linger_ms=0, enable_idempotence=True))
        self.queries: Queries | None = None

    def start(self, app: App) -> None:
        self.app = app
        ensure_topics(app, self.settings.log)
        self.planned = Planner(self._spark, app, self.settings).queries()
        self.queries = Queries(self._spark, app, self.settings, self._home / "checkpoints")
        self.queries.add_all(self.planned)

    def stop(self) -> None:
        if self.queries is not None:
            self._spark.sparkContext.setLogLevel("OFF")
            self.queries.stop(patience=10)
            self._spark.sparkContext.setLogLevel("WARN")

    def send(self, stream: str, *events: dict[str, Any], key: str = "k") -> None:
        topic = stream_topic(self.app.name, stream)
        for event in events:
            self._producer.produce(topic, json.dumps(event), key)
        assert self._producer.flush(10) == 0

    def until(self, condition: Callable[[], object], seconds: float = 120.0) -> None:
        assert self.queries is not None
        deadline, between = time.monotonic() + seconds, pauses()
        while not condition():
            assert time.monotonic() < deadline, f"not so in time; {self.queries.counts()}"
            self.queries.tick()
            time.sleep(next(between))

    def gives(self, actual: Callable[[], object], expected: object, seconds: float = 120.0) -> None:
        """Wait until `actual()` is as expected; if it does not become so, show how it differs."""
        assert self.queries is not None
        deadline, between = time.monotonic() + seconds, pauses()
        while (found := actual()) != expected and time.monotonic() < deadline:
            self.queries.tick()
            time.sleep(next(between))
        assert found == expected, self.queries.counts()

    def records(self, view: str) -> list[tuple[str | None, dict[str, Any] | None]]:
        """Every (key, value) that the view's topic holds."""
        return read_topic(self.settings.log, view_topic(self.app.name, view))

    def table(self, view: str) -> dict[str, dict[str, Any]]:
        """The newest row per key, as a server would have it, without the hidden columns."""
        rows: dict[str, dict[str, Any]] = {}
        for key, row in self.records(view):
            assert key is not None
            if row is None:
                rows.pop(key, None)
            elif key not in rows or row["_revision"] > rows[key]["_revision"]:
                rows[key] = row
        return {key: plain(row) for key, row in rows.items()}

    def stream(self, view: str) -> list[dict[str, Any]]:
        """The rows of a view without a key, as a server would have them: each position once."""
        newest: dict[tuple[str, int], tuple[int, int]] = {}
        rows = []
        for _, row in self.records(view):
            assert row is not None
            at = row["_position"]
            place = (at["source"], at["partition"])
            if (at["offset"], at["row"]) > newest.get(place, (-1, -1)):
                newest[place] = (at["offset"], at["row"])
                rows.append(plain(row))
        return rows


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith("_")}


def read_topic(log: LogSettings, topic: str) -> list[tuple[str | None, dict[str, Any] | None]]:
    """Every (key, value) that a topic holds; none while it is created again."""
    try:
        held = bounds(log, topic)
    except LogError:
        if topic not in known_topics(log):
            return []
        held = bounds(log, topic)
    consumer = Consumer(client_config(log, group_id="tests", enable_auto_commit=False))
    try:
        found = []
        for number, (_, end) in held.items():
            consumer.assign([TopicPartition(topic, number, 0)])
            while consumer.position([TopicPartition(topic, number)])[0].offset < end:
                message = consumer.poll(10.0)
                if message is None or message.error():
                    break
                key, value = message.key(), message.value()
                found.append((key.decode() if key else None, json.loads(value) if value else None))
        return found
    finally:
        consumer.close()


@pytest.fixture(name="read_topic")
def read_topic_fixture() -> Callable[..., Any]:
    return read_topic


@pytest.fixture
def live(spark: SparkSession, log_settings: LogSettings, tmp_path: Path) -> Iterator[Live]:
    running = Live(spark, log_settings, tmp_path / "home")
    yield running
    running.stop()
