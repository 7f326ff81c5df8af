"""The Meetup pipeline, in Python and in SQL."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from examples.meetup.simulator import World
from pyspark.sql import SparkSession

from millstream.connectors import WebSocketSource
from millstream.pipeline.load import load
from millstream.testing import run

EXAMPLE = Path(__file__).parents[2] / "examples/meetup"
START = 1_763_300_000_000
SLIDE = 600_000
Row = dict[str, Any]


def text(milliseconds: int) -> str:
    """A time as in rows."""
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"


def test_it_is_short_enough_to_read_at_a_glance() -> None:
    assert len((EXAMPLE / "pipeline.py").read_text().splitlines()) <= 60


def test_python_and_sql_declare_the_same_streams_and_views() -> None:
    python, sql = load(EXAMPLE / "pipeline.py"), load(EXAMPLE / "pipeline.sql")
    ours, theirs = python.streams["rsvps"], sql.streams["rsvps"]
    for field in ("schema", "key", "event_time", "lateness", "delivery", "source"):
        assert getattr(ours, field) == getattr(theirs, field), field
    assert python.name == sql.name
    assert python.views.keys() == sql.views.keys()
    for name, view in python.views.items():
        other = sql.views[name]
        assert (view.key, view.keep, view.inputs) == (other.key, other.keep, other.inputs), name


@pytest.fixture(scope="module")
def sent() -> list[dict[str, Any]]:
    """RSVPs of a little more than an hour."""
    return [World(seed=3).rsvp(n, START + n * 20_000) for n in range(200)]


@pytest.fixture(scope="module", params=["pipeline.py", "pipeline.sql"])
def views(
    request: pytest.FixtureRequest, spark: SparkSession, sent: list[dict[str, Any]]
) -> dict[str, list[Row]]:
    return run(EXAMPLE / request.param, {"rsvps": sent})


def test_cities_are_counted_with_their_coordinates(
    views: dict[str, list[Row]], sent: list[dict[str, Any]]
) -> None:
    groups = [rsvp["group"] for rsvp in sent]
    cities = Counter((g["group_country"], g["group_city"]) for g in groups)
    where = {g["group_city"]: (g["group_lat"], g["group_lon"]) for g in groups}
    assert {(r["country"], r["city"]): r["rsvps"] for r in views["by_city"]} == cities
    assert {r["city"]: (r["lat"], r["lon"]) for r in views["by_city"]} == where
    countries = Counter(g["group_country"] for g in groups)
    assert {r["country"]: r["rsvps"] for r in views["by_country"]} == countries


def test_each_minute_counts_yes_no_and_the_guests_who_come(
    views: dict[str, list[Row]], sent: list[dict[str, Any]]
) -> None:
    expected: dict[str, list[int]] = {}
    for rsvp in sent:
        counts = expected.setdefault(text(rsvp["mtime"] // 60_000 * 60_000), [0, 0, 0])
        yes = rsvp["response"] == "yes"
        counts[0 if yes else 1] += 1
        counts[2] += rsvp["guests"] if yes else 0
    rows = views["rsvps_per_minute"]
    assert {r["window"]["start"]: [r["yes"], r["no"], r["guests"]] for r in rows} == expected


def test_an_rsvp_counts_for_each_topic_in_six_sliding_hours(
    views: dict[str, list[Row]], sent: list[dict[str, Any]]
) -> None:
    rsvps: Counter[tuple[str, str]] = Counter()
    yes: Counter[tuple[str, str]] = Counter()
    for rsvp in sent:
        newest = rsvp["mtime"] // SLIDE * SLIDE
        for start in range(newest - 5 * SLIDE, newest + 1, SLIDE):
            for topic in rsvp["group"]["group_topics"]:
                group = (text(start), topic["topic_name"])
                rsvps[group] += 1
                yes[group] += rsvp["response"] == "yes"
    rows = {(r["window"]["start"], r["topic"]): r for r in views["trending_topics"]}
    assert {group: row["rsvps"] for group, row in rows.items()} == rsvps
    assert {group: row["yes"] for group, row in rows.items()} == yes


def test_the_newest_rsvps_come_in_order_with_names_and_topics(
    views: dict[str, list[Row]], sent: list[dict[str, Any]]
) -> None:
    rows = views["newest_rsvps"]
    assert [row["rsvp_id"] for row in rows] == [rsvp["rsvp_id"] for rsvp in sent]
    assert [row["member"] for row in rows] == [rsvp["member"]["member_name"] for rsvp in sent]
    assert rows[0]["mtime"] == text(sent[0]["mtime"])
    assert rows[0]["topics"] == [t["topic_name"] for t in sent[0]["group"]["group_topics"]]


def test_the_environment_says_where_the_rsvps_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEETUP_URL", "ws://elsewhere:1/rsvps")
    source = load(EXAMPLE / "pipeline.py").streams["rsvps"].source
    assert source == WebSocketSource("ws://elsewhere:1/rsvps")
