"""The Meetup example as a stranger runs it, against a recomputation in plain Python."""

from __future__ import annotations

import json
import socket
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.end_to_end.conftest import StartSystem, System

EXAMPLE = Path(__file__).parents[2] / "examples" / "meetup"
LATENESS = timedelta(minutes=10)  # as the pipeline says
COUNT = 3_000
Rsvp = dict[str, Any]


class Meetup:
    """A system that pulls from a simulator, and the record of what the simulator sent."""

    def __init__(self, system: System, record: Path) -> None:
        self.system = system
        self._record = record

    def sent(self) -> list[str]:
        return self._record.read_text().splitlines()

    def valid(self) -> list[Rsvp]:
        """Everything sent that a reader of the schema would take."""
        return [event for event in map(parse, self.sent()) if event is not None]

    def judged(self) -> Iterator[tuple[Rsvp, int]]:
        """Each valid event, with the watermark that it came behind; 0 if it was in order."""
        watermark = 0
        for event in self.valid():
            yield event, watermark if event["mtime"] < watermark else 0
            watermark = max(watermark, event["mtime"])


def parse(line: str) -> Rsvp | None:
    try:
        event: Rsvp = json.loads(line)
    except ValueError:
        return None
    fits = "rsvp_id" in event and isinstance(event["mtime"], int)
    return event if fits and isinstance(event["group"], dict) else None


@pytest.fixture(scope="module")
def meetup(
    start_system: StartSystem,
    tmp_path_factory: pytest.TempPathFactory,
    free_port: int,
) -> Iterator[Meetup]:
    record = tmp_path_factory.mktemp("simulator") / "sent.ndjson"
    faults = "--late 0.02 --duplicate 0.02 --broken 0.03"
    simulator = (
        f"{sys.executable} {EXAMPLE / 'simulator.py'} --port {free_port} --seed 11 --rate 400"
        f" --count {COUNT} --record {record} {faults}"
    )
    text = (EXAMPLE / "pipeline.py").read_text()
    assert "ws://127.0.0.1:8600/rsvps" in text
    text = text.replace("ws://127.0.0.1:8600/rsvps", f"ws://127.0.0.1:{free_port}/rsvps")
    with start_system(text, "--with", simulator) as system:
        meetup = Meetup(system, record)
        system.until(lambda: len(meetup.sent()) >= COUNT, 120, "the simulator's last event")
        logged = len(meetup.valid())
        system.until(lambda: total(system, "by_country") >= logged, 60, f"{logged} by country")
        system.until(lambda: total(system, "by_city") >= logged, 60, f"{logged} by city")
        yield meetup


@pytest.fixture(scope="module")
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def total(system: System, view: str) -> int:
    return sum(int(row["rsvps"]) for row in system.rows(view))


def windows(
    milliseconds: int, watermark: int, length: timedelta, slide: timedelta
) -> Iterator[str]:
    """The starts of the windows that an instant falls into, but those that it is too late for."""
    at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    closed = datetime.fromtimestamp(watermark / 1000, UTC) - LATENESS
    step = slide.total_seconds()
    start = datetime.fromtimestamp(at.timestamp() // step * step, UTC)
    while start + length > at:
        if start + length > closed:
            yield start.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        start -= slide


def test_every_message_is_accepted_or_rejected(meetup: Meetup) -> None:
    valid, sent = len(meetup.valid()), len(meetup.sent())
    collect = meetup.system.until(
        lambda: (
            counts
            if (counts := meetup.system.get("/v1/system")["tiers"]["collect"])["logged"] >= valid
            else None
        ),
        30,
        "the collector's report",
    )
    assert (collect["accepted"], collect["logged"]) == (sent, valid)
    assert collect["rejected"] == sent - valid > 0
    assert collect["pending"] == 0


def test_countries_and_cities_equal_a_recomputation(meetup: Meetup) -> None:
    cities = Counter(
        (e["group"]["group_country"], e["group"]["group_city"]) for e in meetup.valid()
    )
    countries: Counter[str] = Counter()
    for (country, _), n in cities.items():
        countries[country] += n
    by_country = {r["country"]: r["rsvps"] for r in meetup.system.rows("by_country")}
    by_city = {(r["country"], r["city"]): r["rsvps"] for r in meetup.system.rows("by_city")}
    assert by_country == countries
    assert by_city == cities


def test_minutes_equal_a_recomputation(meetup: Meetup) -> None:
    minute = timedelta(minutes=1)
    expected: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for event, watermark in meetup.judged():
        for start in windows(event["mtime"], watermark, minute, minute):
            yes = event["response"] == "yes"
            expected[start][0] += yes
            expected[start][1] += not yes
            expected[start][2] += event["guests"] if yes else 0
    in_time = sum(yes + no for yes, no, _ in expected.values())
    assert 0 < in_time < len(meetup.valid())  # some were too late
    meetup.system.until(
        lambda: sum(r["yes"] + r["no"] for r in meetup.system.rows("rsvps_per_minute")) >= in_time,
        60,
        "all in rsvps_per_minute",
    )
    rows = meetup.system.rows("rsvps_per_minute")
    assert {r["window"]["start"]: [r["yes"], r["no"], r["guests"]] for r in rows} == expected


def test_trending_topics_equal_a_recomputation(meetup: Meetup) -> None:
    expected: Counter[tuple[str, str]] = Counter()
    for event, watermark in meetup.judged():
        for start in windows(event["mtime"], watermark, timedelta(hours=1), timedelta(minutes=10)):
            for topic in event["group"]["group_topics"]:
                expected[start, topic["topic_name"]] += 1

    def found() -> Counter[tuple[str, str]]:
        rows = meetup.system.rows("trending_topics")
        return Counter({(r["window"]["start"], r["topic"]): r["rsvps"] for r in rows})

    meetup.system.until(lambda: found().total() >= expected.total(), 60, "all in trending_topics")
    assert found() == expected


def test_the_newest_rsvps_of_a_topic_can_be_asked_for(meetup: Meetup) -> None:
    topic = "Hiking"
    path = f"/v1/views/newest_rsvps?where=array_contains(topics,%20'{topic}')&limit=100000"
    expected = [
        event["rsvp_id"]
        for event in meetup.valid()
        if topic in {t["topic_name"] for t in event["group"]["group_topics"]}
    ]

    def found() -> list[int]:
        return [row["rsvp_id"] for row in meetup.system.get(path)["rows"]]

    meetup.system.until(lambda: len(found()) >= len(expected), 60, "all in newest_rsvps")
    assert found() == expected != []


def test_sql_over_all_views_agrees(meetup: Meetup) -> None:
    outcome = meetup.system.millstream(
        "query", "--json", "SELECT sum(rsvps) AS n FROM by_country WHERE country IS NOT NULL"
    )
    assert outcome.returncode == 0, outcome.stderr
    assert str(len(meetup.valid())) in outcome.stdout
