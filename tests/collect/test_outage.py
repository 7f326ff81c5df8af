"""What senders and sources get when Kafka is away, slow, or killed under load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection

from millstream.log.broker import Broker
from millstream.log.settings import LogSettings
from millstream.source import WebSocketSource

from .conftest import Collector, Peer, click, collect, problem, shop, until


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A Kafka that the test may kill."""
    with Broker(tmp_path / "kafka-home", memory="256m") as broker:
        yield broker


@pytest.fixture
def own_log(own_broker: Broker) -> LogSettings:
    return LogSettings(bootstrap=own_broker.bootstrap)


@pytest.fixture
async def lively(own_log: LogSettings, app_name: str, tmp_path: Path) -> AsyncIterator[Collector]:
    """A collector with room for ten events, that waits two seconds for Kafka."""
    app = shop(app_name)
    limits = {"ack_timeout": 2.0, "max_pending_events": 10, "stop_timeout": 1.0}
    async with collect(app, own_log, tmp_path / "home", **limits) as running:
        yield running


async def test_without_kafka_senders_get_503_in_time_and_are_served_again_after(
    own_broker: Broker, lively: Collector
) -> None:
    assert (await lively.post("clicks", click(0))).status_code == 200
    own_broker.kill()

    async with asyncio.timeout(15):
        waiting = await asyncio.gather(*(lively.post("clicks", click(n)) for n in range(1, 31)))
    for response in waiting:
        content = problem(response, 503)
        assert int(response.headers["retry-after"]) > 0
        assert content.get("receipts", []) == []
    # Ten were let in and timed out; the others were told at once that there is no room.
    full = [r for r in waiting if "nothing was taken in" in r.json()["detail"]]
    assert len(full) == 20
    await _answers(lively, "/health/ready", 503)
    assert (await lively.http.get("/health/live")).status_code == 200

    await asyncio.to_thread(own_broker.start)
    await _answers(lively, "/health/ready", 200)
    assert (await lively.post("clicks", click(99))).status_code == 200
    keys = [record.key for record in await lively.logged("clicks")]
    assert keys[0] == b"0"
    assert keys[-1] == b"99"


async def test_kafka_killed_under_load_never_makes_a_200_a_lie(
    own_broker: Broker, own_log: LogSettings, app_name: str, tmp_path: Path
) -> None:
    confirmed: list[int] = []
    stop = asyncio.Event()

    async def send(collector: Collector, sender: int) -> None:
        number = sender * 1_000_000
        while not stop.is_set():
            number += 10
            events = b"\n".join(click(number + i) for i in range(10))
            response = await collector.post("clicks", events)
            if response.status_code == 200:
                assert response.json()["accepted"] == 10
                confirmed.extend(range(number, number + 10))
            else:
                assert response.status_code == 503
                await asyncio.sleep(0.05)

    async with collect(shop(app_name), own_log, tmp_path / "home", ack_timeout=20.0) as collector:
        async with asyncio.TaskGroup() as senders:
            for sender in range(8):
                senders.create_task(send(collector, sender))
            for _ in range(2):
                await _grows(confirmed)
                own_broker.kill()
                await asyncio.to_thread(own_broker.start)
            await _grows(confirmed)
            stop.set()
        records = await collector.logged("clicks")
        keys = [int(record.key or b"") for record in records]
    assert set(confirmed) <= set(keys)
    # Those who waited through the restarts were only delayed: nothing is in the log twice.
    assert len(keys) == len(set(keys))


async def test_a_source_loses_and_doubles_nothing_when_kafka_is_killed(
    own_broker: Broker, own_log: LogSettings, app_name: str, tmp_path: Path, peer: Peer
) -> None:
    total, sent = 4000, 0

    async def serve(connection: ServerConnection) -> None:
        nonlocal sent
        for number in range(total):
            await connection.send(click(number))
            sent += 1
            if number % 20 == 0:
                await asyncio.sleep(0.005)
        await connection.wait_closed()

    async def all_read() -> bool:
        labels = 'stream="clicks",kind="websocket"'
        metrics = (await collector.http.get("/metrics")).text
        return f"millstream_collect_source_received_total{{{labels}}} {total}\n" in metrics

    peer.serve = serve
    app = shop(app_name, WebSocketSource(peer.url))
    async with collect(app, own_log, tmp_path / "home", max_pending_events=200) as collector:
        await until(lambda: sent > 500)
        own_broker.kill()
        await asyncio.to_thread(own_broker.start)
        await until(all_read, seconds=60)
    # The collector has ended: what it had read is in the log.
    keys = [int(record.key or b"") for record in await collector.logged("clicks")]
    assert sorted(keys) == list(range(total))


async def _grows(numbers: list[int]) -> None:
    enough = len(numbers) + 200
    await until(lambda: len(numbers) > enough, seconds=60)


async def _answers(collector: Collector, path: str, status: int) -> None:
    async def answers() -> bool:
        return (await collector.http.get(path)).status_code == status

    await until(answers)
