"""The traffic example, whole: every row is what its simulator knows to be true."""

from __future__ import annotations

import asyncio
import itertools
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from examples.traffic.car import drive
from examples.traffic.city import cars
from examples.traffic.simulator import SIMULATION
from tests.end_to_end.true_rows import Row, as_set, await_rows, last_watermark, rows_in_log
from tests.wait_until import until

from millstream.client import Change, Client, Sender
from millstream.log.settings import LogSettings
from millstream.pipeline.load import load
from millstream.serve.service import Server
from millstream.serve.settings import ServeSettings
from millstream.settings import Settings
from millstream.simulation import EventSender, SentEvent, predict
from millstream.web.auth.api_keys import ApiKeyFile

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
    began: datetime  # before the first event was sent


@pytest.fixture(scope="module")
def traffic(start_system: StartSystem) -> Iterator[Traffic]:
    start = int(time.time() * 1000) // MINUTE * MINUTE - 40 * MINUTE
    sent = SIMULATION.sendings(seed=3, count=1_000, start=start, span=30 * MINUTE)
    truth = SIMULATION.truth(list(predict(sent)))
    flowing = [each for each in sent if not each.straggler]
    with start_system(PIPELINE.read_text(), *PATIENT) as system:
        example = Traffic(system, sent, truth, last_watermark(flowing), datetime.now(UTC))
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


@asynccontextmanager
async def server_with_login(traffic: Traffic, keys: Path) -> AsyncIterator[Server]:
    """Another server of the same system, which requires a key."""
    settings = Settings(
        log=LogSettings(bootstrap=traffic.system.bootstrap),
        serve=ServeSettings(port=0, auth=("key",), keys_file=str(keys)),
    )
    async with Server(load(PIPELINE), settings) as server:
        await asyncio.wait_for(server.wait_ready(), 60)
        yield server


async def test_each_car_sees_itself_and_no_other(traffic: Traffic, tmp_path: Path) -> None:
    keys = ApiKeyFile(tmp_path / "keys.json")
    secrets = {
        car: keys.create(car, read=["*"], claims={"role": "car", "car": car}) for car in cars()
    }
    seen: list[Row] = []
    async with server_with_login(traffic, tmp_path / "keys.json") as server:
        for car, key in secrets.items():
            async with Client(server.url, key=key) as client:
                rows = (await client.snapshot("my_car")).rows
            assert [row["car"] for row in rows] == [car]
            seen += rows
    assert as_set(seen) == as_set(traffic.truth["views"]["my_car"])


async def test_the_city_replays_its_traffic_by_make_and_model_without_identity(
    traffic: Traffic, tmp_path: Path
) -> None:
    sent = [each.sending.event for each in predict(traffic.sendings) if each.outcome != "duplicate"]
    true = [dict(each) for each in sent if (each["make"], each["model"]) == ("Volvo", "XC40")]
    key = ApiKeyFile(tmp_path / "keys.json").create("city", read=["*"], claims={"role": "city"})
    where = "make = 'Volvo' AND model = 'XC40'"
    replayed: list[Row] = []
    async with (
        server_with_login(traffic, tmp_path / "keys.json") as server,
        Client(server.url, key=key) as client,
        client.changes(stream="positions", after=traffic.began, where=where) as changes,
    ):
        while len(replayed) < len(true):
            message = await asyncio.wait_for(anext(changes), 60)
            if isinstance(message, Change) and message.row is not None:
                replayed.append(message.row)
        assert (await client.snapshot("my_car")).rows == []
    for row in true:
        del row["car"], row["owner"]
    assert as_set(replayed) == as_set(true)


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
