"""`millstream.testing`: running pipelines over a list of events."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millstream import App
from millstream.errors import InvalidEvent, PipelineError
from millstream.testing import run

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def app() -> App:
    app = App("shop")
    app.stream(
        "orders",
        schema="id LONG NOT NULL, city STRING, at TIMESTAMP, tags ARRAY<STRING>",
        event_time="at",
        lateness="1 minute",
    )
    app.view("by_city", key=["city"], sql="SELECT city, count(*) AS n FROM orders GROUP BY city")
    app.view("latest", key=["city"], sql="SELECT city, id, at FROM orders")

    @app.view
    def tags(orders: DataFrame) -> DataFrame:
        return orders.select("id", F.explode("tags").alias("tag"))

    @app.view(key=["tag"])
    def by_tag(tags: DataFrame) -> DataFrame:
        return tags.groupBy("tag").agg(F.count("*").alias("n"), F.max("id").alias("newest"))

    @app.view(key=["minute", "city"])
    def minutes(orders: DataFrame) -> DataFrame:
        return orders.groupBy(F.window("at", "1 minute").alias("minute"), "city").count()

    return app


ORDERS = [
    {"id": 1, "city": "Bern", "at": "2026-11-16T10:00:30+01:00", "tags": ["b", "a"]},
    {"id": 2, "city": "Bern", "at": 1_794_819_645, "tags": []},
    {"id": 3, "city": "Lyon", "at": 1_794_819_660_500, "tags": ["a"], "unknown": True},
]


def test_views_hold_what_clients_would_get(app: App) -> None:
    views = run(app, {"orders": ORDERS})
    assert views["by_city"] == [{"city": "Bern", "n": 2}, {"city": "Lyon", "n": 1}]
    assert views["latest"] == [
        {"city": "Bern", "id": 2, "at": "2026-11-16T09:00:45.000000Z"},
        {"city": "Lyon", "id": 3, "at": "2026-11-16T09:01:00.500000Z"},
    ]
    assert views["tags"] == [{"id": 1, "tag": "b"}, {"id": 1, "tag": "a"}, {"id": 3, "tag": "a"}]
    assert views["by_tag"] == [
        {"tag": "a", "n": 2, "newest": 3},
        {"tag": "b", "n": 1, "newest": 1},
    ]
    first = {"start": "2026-11-16T09:00:00.000000Z", "end": "2026-11-16T09:01:00.000000Z"}
    assert views["minutes"][0] == {"minute": first, "city": "Bern", "count": 2}


def test_a_stream_without_events_gives_empty_views(app: App) -> None:
    assert run(app, {})["by_city"] == []


def test_a_file_is_loaded_first(tmp_path: Path) -> None:
    file = tmp_path / "shop.sql"
    file.write_text(
        "CREATE STREAM orders (id LONG);\n"
        "CREATE VIEW large AS SELECT id FROM orders WHERE id > 1;\n"
    )
    assert run(file, {"orders": ['{"id": 1}', b'{"id": 2}']}) == {"large": [{"id": 2}]}


def test_an_event_that_would_be_rejected_is_named(app: App) -> None:
    with pytest.raises(InvalidEvent, match=r"event 1 of stream 'orders': .*id"):
        run(app, {"orders": [ORDERS[0], {"id": "one", "at": 1}]})


def test_an_unknown_stream_is_a_mistake(app: App) -> None:
    with pytest.raises(PipelineError, match="did you mean 'orders'"):
        run(app, {"order": []})


def test_it_uses_the_running_session(app: App, spark: SparkSession) -> None:
    before = spark.sparkContext.applicationId
    run(app, {})
    active = SparkSession.getActiveSession()
    assert active is not None
    assert active.sparkContext.applicationId == before
