"""The Meetup simulator: its RSVPs, its faults, and its stream."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest
from examples.meetup.simulator import Faults, World, messages
from websockets.asyncio.client import connect

SCRIPT = Path(__file__).parents[2] / "examples/meetup/simulator.py"
NOW = 1_763_300_000_000


@pytest.fixture(scope="module")
def world() -> World:
    return World(seed=7)


@pytest.fixture(scope="module")
def day(world: World) -> list[dict[str, Any]]:
    """The groups of one simulated day."""
    return [world.rsvp(n, NOW)["group"] for n in range(20_000)]


@asynccontextmanager
async def simulator(*flags: str) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(SCRIPT), "--port", "0", "--rate", "5000", *flags),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20):
            line = (await process.stdout.readline()).decode()
        match = re.search(r"ws://\S+/rsvps", line)
        assert match is not None, line
        yield match[0], process
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(20):
            await process.wait()


def test_an_rsvp_has_the_fields_of_meetups_public_stream(world: World) -> None:
    events = [world.rsvp(n, NOW) for n in range(200)]
    event = next(e for e in events if "venue" in e and "group_state" in e["group"])
    assert set(event) == {
        *(
            "venue",
            "visibility",
            "response",
            "guests",
            "member",
            "rsvp_id",
            "mtime",
            "event",
            "group",
        )
    }
    assert set(event["venue"]) == {"venue_name", "lon", "lat", "venue_id"}
    assert set(event["member"]) | {"photo"} == {"member_id", "photo", "member_name"}
    assert set(event["event"]) == {"event_name", "event_id", "time", "event_url"}
    assert set(event["group"]) == {
        *("group_topics", "group_city", "group_country", "group_id", "group_name", "group_lon"),
        *("group_lat", "group_urlname", "group_state"),
    }
    assert all(set(topic) == {"urlkey", "topic_name"} for topic in event["group"]["group_topics"])
    assert event["mtime"] == NOW < event["event"]["time"]
    assert {e["response"] for e in events} == {"yes", "no"}


def test_event_n_depends_on_the_seed_and_n_alone(world: World) -> None:
    forwards = [world.rsvp(n, NOW) for n in range(300)]
    backwards = [World(seed=7).rsvp(n, NOW) for n in reversed(range(300))][::-1]
    assert forwards == backwards
    assert World(seed=8).rsvp(0, NOW) != forwards[0]
    assert len({event["rsvp_id"] for event in forwards}) == 300


def test_a_group_keeps_its_name_city_and_topics(world: World) -> None:
    groups: dict[int, str] = {}
    for n in range(3_000):
        group = world.rsvp(n, NOW)["group"]
        assert groups.setdefault(group["group_id"], json.dumps(group)) == json.dumps(group)


def test_cities_and_topics_are_skewed(day: list[dict[str, Any]]) -> None:
    cities = Counter(group["group_city"] for group in day)
    topics = Counter(topic["topic_name"] for group in day for topic in group["group_topics"])
    assert len(cities) > 90
    assert len(topics) > 75
    for ranked in (cities.most_common(), topics.most_common()):
        counts = [count for _, count in ranked]
        assert counts[0] > 2 * counts[len(counts) // 4] > 4 * counts[-1]


def test_topics_trend_for_a_while_and_activity_follows_the_time_of_day(
    day: list[dict[str, Any]],
) -> None:
    quarters = [day[at : at + 2_000] for at in range(0, 20_000, 5_000)]
    countries = [Counter(g["group_country"] for g in quarter) for quarter in quarters]
    topics = [Counter(t["topic_name"] for g in q for t in g["group_topics"]) for q in quarters]
    assert len({count.most_common(1)[0][0] for count in countries}) > 1
    assert len({count.most_common(1)[0][0] for count in topics}) > 1


def test_names_come_in_many_scripts(world: World) -> None:
    names = "".join(world.rsvp(n, NOW)["member"]["member_name"] for n in range(0, 20_000, 5))
    for letter in ("ü", "ñ", "\N{CYRILLIC SMALL LETTER A}", "מ", "ل", "प", "王", "さ", "서"):
        assert letter in names, letter


def test_events_come_in_bursts_at_the_mean_rate(world: World) -> None:
    gaps = [world.gap(n) for n in range(10_000)]
    assert sum(gaps) / len(gaps) == pytest.approx(1, rel=0.1)
    blocks = [sum(gaps[at : at + 50]) for at in range(0, 10_000, 50)]
    assert max(blocks) > 4 * min(blocks)


def test_faults_have_the_configured_shares(world: World) -> None:
    faults = Faults(late=0.1, duplicate=0.2, broken=0.05)
    sent = [text for texts in islice(messages(world, faults, lambda: NOW), 4_000) for text in texts]
    whole = [event for text in sent if (event := read(text)) is not None]
    ids = Counter(event["rsvp_id"] for event in whole)
    assert len(sent) - len(whole) == pytest.approx(200, rel=0.25)
    assert sum(event["mtime"] < NOW for event in whole) == pytest.approx(400, rel=0.25)
    assert sum(count == 2 for count in ids.values()) == pytest.approx(800, rel=0.15)
    assert max(ids.values()) == 2
    assert len(ids) + len(sent) - len(whole) == 4_000


def test_a_duplicate_is_the_same_bytes_again(world: World) -> None:
    now = iter(range(NOW, NOW + 10_000))
    sent = [
        t for ts in islice(messages(world, Faults(duplicate=1), lambda: next(now)), 500) for t in ts
    ]
    assert Counter(Counter(sent).values()) == {2: 493, 1: 7}


def test_without_faults_every_event_is_complete_and_sent_once(world: World) -> None:
    sent = list(islice(messages(world, Faults(), lambda: NOW), 500))
    assert [len(texts) for texts in sent] == [1] * 500
    assert all(read(texts[0]) is not None for texts in sent)


async def test_a_listener_gets_every_event_and_the_record_has_them(
    tmp_path: Path,
) -> None:
    record = tmp_path / "sent.ndjson"
    flags = ("--count", "1500", "--duplicate", "0.1", "--broken", "0.1", "--record", str(record))
    faults = Faults(duplicate=0.1, broken=0.1)
    count = sum(map(len, islice(messages(World(seed=7), faults, lambda: NOW), 1500)))
    async with simulator(*flags) as (url, process), asyncio.timeout(30), connect(url) as connection:
        got = [str(await connection.recv()) for _ in range(count)]
        assert record.read_text().splitlines() == got
        assert process.returncode is None
    assert process.returncode == 0
    ids = {event["rsvp_id"] - 1_700_000_000 for text in got if (event := read(text)) is not None}
    assert ids == {n for n in range(1500) if faults.of(7, n) != "broken"}


async def test_two_listeners_get_the_same_stream_and_one_that_returns_gets_later_events() -> None:
    async with simulator("--rate", "300") as (url, _), asyncio.timeout(30):
        async with connect(url) as one, connect(url) as two:
            first = await two.recv()
            while await one.recv() != first:
                pass
            assert [await one.recv() for _ in range(50)] == [await two.recv() for _ in range(50)]
        async with connect(url) as back:
            assert json.loads(await back.recv())["rsvp_id"] > json.loads(first)["rsvp_id"] + 50


async def test_another_path_is_not_found_and_the_answer_names_the_right_one() -> None:
    async with simulator() as (url, _), httpx.AsyncClient() as client:
        answer = await client.get(url.replace("ws:", "http:").replace("/rsvps", "/other"))
    assert answer.status_code == 404
    assert "/rsvps" in answer.text


def read(text: str) -> dict[str, Any] | None:
    """The RSVP, or None if it must be rejected."""
    try:
        event: dict[str, Any] = json.loads(text)
    except ValueError:
        return None
    whole = (
        "rsvp_id" in event and isinstance(event["mtime"], int) and isinstance(event["group"], dict)
    )
    return event if whole else None
