"""The traffic example, whole: every row is what its simulator knows to be true."""

from __future__ import annotations

import asyncio
import itertools
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from examples.traffic.car import drive
from examples.traffic.city import cars
from examples.traffic.simulator import SIMULATION
from tests.end_to_end.true_rows import Row, as_set, await_rows, last_watermark, rows_in_log
from tests.wait_until import until

from millstream.client import Client, Sender
from millstream.simulation import EventSender, SentEvent, predict

if TYPE_CHECKING:
    from tests.end_to_end.conftest import StartSystem, System

PIPELINE = Path(__file__).parents[2] / "examples/traffic/pipeline.py"
MINUTE = 60_000
# So long that no pause of a test passes for one of the stream's: what is open stays open.
PATIENT = ("--set", "analyze.idle=10 minutes")


@dataclass
class Traffic:
    """The running example, all of whose events were sent, and the truth about them."""

    system: System
    sendings: list[SentEvent]
    truth: dict[str, Any]
    watermark: str


@pytest.fixture(scope="module")
def traffic(start_system: StartSystem) -> Iterator[Traffic]:
    start = int(time.time() * 1000) // MINUTE * MINUTE - 40 * MINUTE
    sent = SIMULATION.sendings(seed=3, count=1_000, start=start, span=30 * MINUTE)
    truth = SIMULATION.truth(list(predict(sent)))
    flowing = [each for each in sent if not each.straggler]
    with start_system(PIPELINE.read_text(), *PATIENT) as system:
        example = Traffic(system, sent, truth, last_watermark(flowing))
        with EventSender(system.collect_url, "positions") as post:
            post.send(flowing)
            await_rows(
                *(system, "speeds", SIMULATION.truth(list(predict(flowing)))["views"]["speeds"]),
                *(("window", "city"), example.watermark),
            )
            post.send(sent[len(flowing) :])
        yield example


@pytest.mark.timeout(600)
def test_the_speed_in_each_city_is_true_in_all_five_minutes(traffic: Traffic) -> None:
    true = traffic.truth["views"]["speeds"]
    key = ("window", "city")
    await_rows(traffic.system, "speeds", true, key, traffic.watermark)


def test_each_road_has_its_newest_condition(traffic: Traffic) -> None:
    await_rows(traffic.system, "roads", traffic.truth["views"]["roads"], ("city", "segment"))


def test_each_car_is_where_it_was_last(traffic: Traffic) -> None:
    true = traffic.truth["views"]["my_car"]

    def newest() -> list[Row]:
        rows = rows_in_log(traffic.system, "traffic.view.my_car")
        return list({row["car"]: row for row in rows}.values())

    traffic.system.until(lambda: as_set(newest()) == as_set(true), 60, "the truth in my_car")


def test_nobody_sees_a_car_without_being_that_car(traffic: Traffic) -> None:
    assert traffic.system.get("/v1/views/my_car")["rows"] == []
    assert traffic.system.get("/v1/streams/positions/events?wait=0")["rows"] == []
    names = {name for name in cars() if name.encode() in read_all(traffic.system)}
    assert names == set()


def read_all(system: System) -> bytes:
    """Everything that the server gives to a caller who is nobody, but for the tiers' state."""
    paths = ("views", "views/my_car", "views/sightings?limit=10000", "views/roads", "views/speeds")
    urls = [f"{system.serve_url}/v1/{path}" for path in paths]
    return b"".join(urllib.request.urlopen(url, timeout=30).read() for url in urls)


def test_every_position_is_a_sighting_without_identity(traffic: Traffic) -> None:
    true = traffic.truth["views"]["sightings"]
    path = "/v1/views/sightings?limit=10000"
    traffic.system.until(lambda: len(traffic.system.get(path)["rows"]) >= len(true), 60)
    assert as_set(traffic.system.get(path)["rows"]) == as_set(true)


async def test_a_car_follows_the_roads_ahead_of_it_as_it_drives(traffic: Traffic) -> None:
    """Last: it sends more."""
    car, seen = cars()["car-07"], set[str]()
    times = itertools.count(int(time.time() * 1000) - 10 * MINUTE, 5_000)

    def show(road: Mapping[str, Any]) -> None:
        assert road["city"] == car.city
        seen.add(road["segment"])

    async with Client(traffic.system.serve_url) as client, Sender(traffic.system.collect_url) as to:
        driving = asyncio.create_task(
            drive(client, to, car, show, clock=lambda: next(times), pause=0.02)
        )
        await until(lambda: seen >= set(car.route) or driving.done())
        driving.cancel()
        with suppress(asyncio.CancelledError):
            await driving
    assert seen == set(car.route)
