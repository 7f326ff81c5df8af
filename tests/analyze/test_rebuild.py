"""A view computed anew beside the one that is served: by command, and when the pipeline changed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from tests.analyze.conftest import plain, read_topic

from millstream.analyze.editions import describe_views, topic_of
from millstream.analyze.planner import Planner
from millstream.analyze.queries import Queries
from millstream.analyze.rebuild import Rebuilds
from millstream.analyze.requests import Request, put_request
from millstream.analyze.service import _Analyze
from millstream.analyze.settings import AnalyzeSettings
from millstream.app import App
from millstream.audit import Rebuild, Report
from millstream.cli.outcome import invoke
from millstream.home import Home
from millstream.log.connection import client_config
from millstream.log.settings import LogSettings
from millstream.log.topics import (
    audit_topic,
    ensure_topics,
    known_topics,
    stream_topic,
    view_topic,
)
from millstream.log.write import write
from millstream.settings import Settings

if TYPE_CHECKING:
    from tests.analyze.conftest import Load
    from tests.conftest import Eventually

STREAM = 'app.stream("orders", schema="city STRING, amount LONG")\n'
COUNT = 'sql="SELECT city, count(*) AS n FROM orders GROUP BY city")'
VIEWS = f"""
app.view("by_city", key=["city"], {COUNT}
app.view("steady", key=["city"], keep="{{keep}}", {COUNT}
app.view("busy", key=["city"], reads={{{{"by_city": "changes"}}}},
         sql="SELECT city, max(n) AS most FROM by_city GROUP BY city")
"""
FIRST = STREAM + VIEWS.format(keep="1 day")
CHANGED = FIRST.replace("count(*) AS n", "count(*) AS n, sum(amount) AS total", 1)
CHANGED = CHANGED.replace("1 day", "2 days")


class Analyze:
    """The tier as its process runs it, on the session that all tests share."""

    def __init__(self, spark: SparkSession, log: LogSettings, home: Path) -> None:
        self._spark, self._home = spark, Home(home)
        analyze = AnalyzeSettings(checkpoint_interval="5 seconds")
        self.settings = Settings(log=log, analyze=analyze)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, app: App) -> None:
        self.app = app
        ensure_topics(app, self.settings.log)
        self._stopping.clear()
        tier = _Analyze(app, self.settings, self._home, self._spark)
        self._thread = threading.Thread(target=tier.run, args=(self._stopping,))
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(30)
        self._spark.sparkContext.setLogLevel("WARN")

    def send(self, *cities: str) -> None:
        producer = Producer(client_config(self.settings.log))
        for city in cities:
            value = json.dumps({"city": city, "amount": 10})
            producer.produce(stream_topic(self.app.name, "orders"), value)
        assert producer.flush(10) == 0

    def topic(self, view: str) -> str:
        described = describe_views(self.app.name, self.settings.log).get(view)
        return topic_of(self.app.name, described) if described else ""

    def told(self, view: str) -> Rebuild | None:
        """What the newest report says of the view's rebuild."""
        reports = (value for _, value in read_topic(self.settings.log, audit_topic(self.app.name)))
        *_, newest = (each for each in reports if each is not None)
        counts = msgspec.convert(newest, Report).views.get(view)
        return counts.rebuild if counts is not None else None

    def table(self, view: str) -> dict[str, Any]:
        """The served rows by city."""
        if not (topic := self.topic(view)):
            return {}
        rows: dict[str, Any] = {}
        for _, row in read_topic(self.settings.log, topic):
            assert row is not None
            if row["_revision"] >= rows.get(row["city"], row)["_revision"]:
                rows[row["city"]] = row
        return {city: plain(row) for city, row in rows.items()}

    def look(self, served: list[dict[str, Any]]) -> bool:
        """Look again at what is served; whether it is another than at first."""
        served.append(self.table("by_city"))
        return served[-1] != served[0]


@pytest.fixture
def analyze(spark: SparkSession, log_settings: LogSettings, tmp_path: Path) -> Iterator[Analyze]:
    running = Analyze(spark, log_settings, tmp_path / "home")
    yield running
    running.stop()


def test_a_view_is_rebuilt_while_the_old_one_is_served(
    analyze: Analyze,
    pipeline: Load,
    eventually: Eventually,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    analyze.start(pipeline(FIRST))
    name, log = analyze.app.name, analyze.settings.log
    analyze.send("Bern", "Bern", "Ghent")
    bern, ghent = {"city": "Bern", "n": 2}, {"city": "Ghent", "n": 1}
    eventually(lambda: analyze.table("by_city") == {"Bern": bern, "Ghent": ghent}, 120)
    eventually(lambda: analyze.table("busy")["Bern"]["most"] == 2)
    wrong = json.dumps({"city": "Bern", "n": 99, "_revision": 1_000_000}).encode()
    write(log, view_topic(name, "by_city"), {'["Bern"]': wrong}, 10)
    eventually(lambda: analyze.table("busy")["Bern"]["most"] == 99)

    capfd.readouterr()
    command = ["rebuild", "by_city", "--app", name, f"--set=log.bootstrap={log.bootstrap}"]
    assert invoke([*command, "--yes", "--json"]) == 0
    done = json.loads("{" + capfd.readouterr().out.partition("{")[2])  # the tier says it is ready
    assert (done["swapped"], done["records"], done["same"]) == (True, 3, 1)
    (difference,) = done["differences"]
    assert (difference["old"]["n"], difference["new"]["n"]) == (99, 2)
    eventually(lambda: (told := analyze.told("by_city")) and told.state == "done")
    told = analyze.told("by_city")
    assert told is not None
    assert (told.state, told.done, told.total, told.topic) == ("done", 3, 3, done["topic"])
    assert told.request
    assert 0 < told.started_at < told.ended_at
    assert analyze.topic("by_city") == done["topic"] == f"{view_topic(name, 'by_city')}.1"
    assert analyze.topic("steady") == view_topic(name, "steady")
    assert analyze.topic("busy") == f"{view_topic(name, 'busy')}.1"  # it read the wrong row
    assert analyze.table("busy")["Bern"]["most"] == 2
    analyze.send("Bern")
    eventually(lambda: analyze.table("by_city") == {"Bern": {**bern, "n": 3}, "Ghent": ghent})
    eventually(lambda: analyze.table("busy")["Bern"]["most"] == 3)

    analyze.stop()
    analyze.start(pipeline(CHANGED))
    served = [analyze.table("by_city")]
    eventually(lambda: analyze.look(served), 120)
    assert served[0] == {"Bern": {"city": "Bern", "n": 3}, "Ghent": ghent}
    assert served[-1] == {  # whole at once
        "Bern": {"city": "Bern", "n": 3, "total": 30},
        "Ghent": {"city": "Ghent", "n": 1, "total": 10},
    }
    assert analyze.topic("by_city") == f"{view_topic(name, 'by_city')}.2"
    eventually(lambda: (told := analyze.told("by_city")) and told.state == "done")
    told = analyze.told("by_city")
    assert told is not None
    assert told.request == "", "nobody asked: the pipeline changed"
    assert analyze.topic("steady") == view_topic(name, "steady")
    said = capfd.readouterr().out
    assert "view by_city was changed (other columns; rebuilt)" in said
    assert "steady" not in said  # another `keep` needs no other rows
    eventually(lambda: analyze.topic("busy") == f"{view_topic(name, 'busy')}.2", 120)
    old = {view_topic(name, "by_city"), f"{view_topic(name, 'by_city')}.1"}
    eventually(lambda: not old & known_topics(log))
    checkpoints = tmp_path / "home" / "checkpoints"
    kept = {"by_city.2", "steady", "busy.2"}
    eventually(lambda: {folder.name for folder in checkpoints.iterdir()} == kept)


def test_why_a_view_cannot_be_rebuilt_is_told_until_it_is_tried_again(
    spark: SparkSession,
    log_settings: LogSettings,
    pipeline: Load,
    eventually: Eventually,
    tmp_path: Path,
) -> None:
    app = pipeline(STREAM + f'app.view("v", key=["city"], trigger="every 1 hour", {COUNT}')
    ensure_topics(app, log_settings)
    settings, home = Settings(log=log_settings), Home(tmp_path / "home")
    queries = Queries(spark, app, settings, home.checkpoints)
    fulfilled: list[str] = []
    rebuilds = Rebuilds(
        *(spark, app, settings, home, queries), lambda topic, key, _: fulfilled.append(key)
    )

    def told_after_tick() -> object:
        rebuilds.tick()
        return rebuilds.add_to({})

    try:
        rebuilds.serve([Planner(spark, app, settings).query("v").plan])
        put_request(log_settings, app.name, "v", Request("1", 5_000))
        eventually(told_after_tick)
        put_request(log_settings, app.name, "v", Request("1", cancel=True))  # who asked has gone
        eventually(lambda: told_after_tick() and fulfilled)
        told = rebuilds.add_to({})["v"].rebuild
        assert told is not None
        assert (told.state, told.request, told.since) == ("failed", "1", 5_000)
        assert "has a trigger" in told.error
    finally:
        rebuilds.close(1)
