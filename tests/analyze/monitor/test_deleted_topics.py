"""A view stops when a topic of it is deleted: it keeps its rows and names the topic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession
from tests.analyze.rebuild.test_rebuild import Analyze

from millstream.cli.invoke import invoke
from millstream.log.settings import LogSettings
from millstream.log.topic_names import stream_topic, view_topic
from millstream.log.topics import delete_topics, known_topics
from millstream.pipeline.pipeline_topics import ensure_topics

if TYPE_CHECKING:
    from tests.analyze.conftest import Live, Load
    from tests.conftest import Eventually

COUNTS = """
app.stream("orders", schema="city STRING, amount LONG")
app.stream("others", schema="city STRING")
app.view("by_city", key=["city"], sql="SELECT city, count(*) AS n FROM orders GROUP BY city")
app.view("batches", key=["city"], mode="micro_batch",
         sql="SELECT city, count(*) + 0 AS n FROM orders GROUP BY city")
app.view("elsewhere", key=["city"], sql="SELECT city, count(*) AS n FROM others GROUP BY city")
"""
VIEWS = ("by_city", "batches")


def numbers(live: Live, view: str) -> list[int]:
    return [row["n"] for row in live.table(view).values()]


def recreate(live: Live, topic: str) -> None:
    """Delete a topic as an operator does, and create it again as a starting tier does."""
    log = live.settings.log
    delete_topics(log, [topic])
    live.until(lambda: topic not in known_topics(log))
    ensure_topics(live.app, log)


def stopped(live: Live, view: str, words: str) -> bool:
    state, error = live.queries.state_of(view) if live.queries else ("", "")
    return state == "failed" and words in error and f"millstream rebuild {view}" in error


@pytest.mark.timeout(400)
def test_deleting_a_stream_stops_its_views_and_keeps_their_rows(live: Live, pipeline: Load) -> None:
    app = pipeline(COUNTS)
    live.start(app)
    topic = stream_topic(app.name, "orders")
    live.send("orders", *[{"city": "Bern"}] * 7)
    live.send("others", {"city": "Oslo"})
    for view in VIEWS:
        live.gives(partial(numbers, live, view), [7])
    live.gives(lambda: numbers(live, "elsewhere"), [1])
    live.until(lambda: live.queries and live.queries.settled)
    recreate(live, topic)
    for view in VIEWS:
        live.until(partial(stopped, live, view, f"topic {topic}, which it reads, was del"))
    live.send("orders", *[{"city": "Bern"}] * 9)
    live.send("others", {"city": "Oslo"})
    live.gives(lambda: numbers(live, "elsewhere"), [2])
    assert live.queries is not None
    assert live.queries.counts()["elsewhere"].restarts == 0
    assert [numbers(live, view) for view in VIEWS] == [[7], [7]], "the rows of before are gone"

    live.stop()
    live.start(app)
    for view in VIEWS:
        live.until(partial(stopped, live, view, "was deleted and made again"))
    live.until(lambda: live.queries and live.queries.settled)
    assert [numbers(live, view) for view in VIEWS] == [[7], [7]], "a restart took the new topic"


@pytest.mark.timeout(400)
def test_a_deleted_stream_is_noticed_and_created_again_for_collectors(
    live: Live, pipeline: Load
) -> None:
    app = pipeline(COUNTS)
    live.start(app)
    topic = stream_topic(app.name, "orders")
    live.send("orders", *[{"city": "Bern"}] * 7)
    live.gives(lambda: numbers(live, "by_city"), [7])
    delete_topics(live.settings.log, [topic])
    for view in VIEWS:
        live.until(partial(stopped, live, view, f"topic {topic}, which it reads, was del"))
    live.until(lambda: topic in known_topics(live.settings.log))
    assert numbers(live, "by_city") == [7]


@pytest.mark.timeout(400)
def test_deleting_a_view_s_topic_stops_the_view(live: Live, pipeline: Load) -> None:
    app = pipeline(COUNTS)
    live.start(app)
    live.send("orders", *[{"city": "Bern"}] * 7)
    live.gives(lambda: numbers(live, "by_city"), [7])
    topic = view_topic(app.name, "by_city")
    delete_topics(live.settings.log, [topic])
    live.until(lambda: stopped(live, "by_city", f"topic {topic}, which its rows are in, was del"))
    live.until(lambda: live.queries and live.queries.state_of("batches")[0] == "running")
    assert topic not in known_topics(live.settings.log), "servers would show no rows"


CHAIN = """
app.stream("orders", schema="city STRING, amount LONG")
app.view("by_city", key=["city"], sql="SELECT city, count(*) AS n FROM orders GROUP BY city")
app.view("busy", key=["city"], reads={"by_city": "changes"},
         sql="SELECT city, max(n) AS n FROM by_city GROUP BY city")
"""


@pytest.mark.timeout(400)
def test_a_view_follows_a_topic_that_its_input_s_query_created_again(
    live: Live, pipeline: Load, tmp_path: Path
) -> None:
    app = pipeline(CHAIN)
    live.start(app)
    live.send("orders", *[{"city": "Bern"}] * 7)
    live.gives(lambda: numbers(live, "busy"), [7])
    live.stop()
    for file in sorted((tmp_path / "home" / "checkpoints" / "by_city").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    (tmp_path / "home" / "checkpoints" / "by_city").rmdir()
    live.start(app)
    live.send("orders", {"city": "Bern"})
    live.gives(lambda: numbers(live, "by_city"), [8])
    live.gives(lambda: numbers(live, "busy"), [8])


@pytest.fixture
def analyze(spark: SparkSession, log_settings: LogSettings, tmp_path: Path) -> Iterator[Analyze]:
    running = Analyze(spark, log_settings, tmp_path / "home")
    yield running
    running.stop()


@pytest.mark.timeout(400)
def test_a_rebuild_reads_the_new_topic(
    analyze: Analyze, pipeline: Load, eventually: Eventually, capfd: pytest.CaptureFixture[str]
) -> None:
    analyze.start(pipeline(CHAIN))
    app, log = analyze.app, analyze.settings.log
    analyze.send(*["Bern"] * 7)
    eventually(lambda: analyze.table("busy").get("Bern", {}).get("n") == 7, 120)
    topic = stream_topic(app.name, "orders")
    delete_topics(log, [topic])
    eventually(lambda: topic not in known_topics(log))
    eventually(lambda: analyze.counts("by_city").state == "failed", 120)
    eventually(lambda: topic in known_topics(log))
    assert analyze.table("by_city")["Bern"]["n"] == 7
    analyze.send(*["Bern"] * 2)
    capfd.readouterr()
    command = ["rebuild", "by_city", "--app", app.name, f"--set=log.bootstrap={log.bootstrap}"]
    assert invoke([*command, "--yes", "--json"]) == 0
    done = json.loads("{" + capfd.readouterr().out.partition("{")[2])
    assert (done["swapped"], done["records"]) == (True, 2)
    eventually(lambda: analyze.table("by_city")["Bern"]["n"] == 2)
    eventually(lambda: analyze.counts("by_city").state == "running")
    analyze.send("Bern")
    eventually(lambda: analyze.table("by_city")["Bern"]["n"] == 3)
    eventually(lambda: analyze.table("busy")["Bern"]["n"] == 3)
