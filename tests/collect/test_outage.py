"""Senders and sources while Kafka is away, slow, or killed under load."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.collect.collector_state import balance, counted
from tests.collect.conftest import Collector, Peer, click, collect, headers, problem, shop, until
from websockets.asyncio.server import ServerConnection

from millstream.connectors import WebSocketSource
from millstream.log.broker import Broker
from millstream.log.settings import LogSettings


@pytest.fixture
def own_log(own_broker: Broker) -> LogSettings:
    return LogSettings(bootstrap=own_broker.bootstrap)


@pytest.fixture
async def lively(own_log: LogSettings, app_name: str, tmp_path: Path) -> AsyncIterator[Collector]:
    """A collector with little room, in which senders wait two seconds for Kafka."""
    app = shop(app_name)
    limits = {"ack_timeout": 2.0, "max_pending_events": 10, "stop_timeout": 1.0}
    journal = {"max_bytes": 64 << 10, "segment_bytes": 8 << 10}
    async with collect(app, own_log, tmp_path / "home", journal=journal, **limits) as running:
        yield running


async def test_without_kafka_events_are_accepted_until_the_journal_is_full_and_none_is_lost(
    own_broker: Broker, lively: Collector
) -> None:
    assert (await lively.post("clicks", click(0))).status_code == 200
    own_broker.kill()

    async with asyncio.timeout(30):
        waiting = await asyncio.gather(*(lively.post("clicks", click(n)) for n in range(1, 31)))
    for response in waiting:
        assert response.status_code == 202
        assert len(response.json()["receipts"]) == 1
        assert "will get there" in response.json()["detail"]
    await until(lambda: _kafka_is(lively, "away"))
    # It can take in more: that Kafka is away is no reason to turn senders away.
    assert (await lively.http.get("/health/ready")).status_code == 200

    taken, number = 31, 31
    large = "x" * 1000
    while True:
        response = await lively.http.post(
            "/v1/streams/clicks?ack=local", content=click(number, name=large)
        )
        if response.status_code != 202:
            break
        number = taken = number + 1
    content = problem(response, 503)
    assert "nothing was accepted" in str(content["detail"])
    assert int(response.headers["retry-after"]) > 0
    assert 40 < taken < 150
    assert (await lively.http.get("/health/live")).status_code == 200

    await asyncio.to_thread(own_broker.start)

    async def all_there() -> bool:
        return len(await lively.logged("clicks")) >= taken

    await until(all_there, seconds=60)
    assert (await lively.post("clicks", click(999))).status_code == 200
    keys = [int(record.key or b"") for record in await lively.logged("clicks")]
    assert keys == [*range(taken), 999]
    assert await _kafka_is(lively, "up")


async def test_events_answered_with_200_are_in_the_log_although_kafka_is_killed_under_load(
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
            if response.status_code in (200, 202):
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


async def test_without_kafka_sheddable_events_are_dropped_and_a_source_waits(
    own_broker: Broker, own_log: LogSettings, app_name: str, tmp_path: Path, peer: Peer
) -> None:
    app = shop(app_name, WebSocketSource(peer.url))
    schema = "id LONG, level STRING, text STRING"
    shed = "level = 'debug'"
    app.stream("logs", schema=schema, delivery="at_least_once", shed=shed, shed_at=0.3)
    app.stream("pulses", schema="id LONG", delivery="at_most_once", shed="random")
    sent, total, go = 0, 200, asyncio.Event()

    async def serve(connection: ServerConnection) -> None:
        nonlocal sent
        await go.wait()
        for number in range(total):
            await connection.send(click(number, name="x" * 1000))
            sent += 1
        await connection.wait_closed()

    def entry(number: int, level: str) -> bytes:
        return json.dumps({"id": number, "level": level, "text": "x" * 400}).encode()

    async def post(numbers: range, level: str) -> tuple[int, int]:
        body = b"\n".join(entry(number, level) for number in numbers)
        response = await collector.http.post("/v1/streams/logs?ack=local", content=body)
        assert response.status_code == 202, response.text
        answer = response.json()
        assert answer["accepted"] + answer.get("shed", 0) == len(numbers)
        assert await balance(collector, "logs") == 0
        return answer["accepted"], answer.get("shed", 0)

    peer.serve = serve
    journal = {"max_bytes": 96 << 10, "segment_bytes": 8 << 10}
    settings = {"max_pending_events": 100, "room_timeout": 0.02, "stop_timeout": 1.0}
    async with collect(app, own_log, tmp_path / "home", journal=journal, **settings) as collector:
        assert (await collector.post("logs", entry(0, "debug"))).json()["accepted"] == 1
        await asyncio.to_thread(own_broker.kill)
        statuses = Counter(
            [(await collector.post("pulses", b'{"id": 1}')).status_code for _ in range(250)]
        )
        assert set(statuses) == {204, 503}
        assert await counted(collector, "shed_total", "pulses") > 0
        assert await balance(collector, "pulses") == 0

        number, accepted, dropped = 1, 1, 0
        while dropped < 15:
            count = 3 if number % 2 else 1
            more, less = await post(range(number, number + count), "debug")
            number, accepted, dropped = number + count, accepted + more, dropped + less
        assert await post(range(number, number + 5), "error") == (5, 0)
        assert await counted(collector, "shed_total", "logs") == dropped

        go.set()
        await until(lambda: _is_full(collector))
        refused = await collector.post("clicks", click(1, name="x" * 90_000))
        assert "the journal is full" in str(problem(refused, 503)["detail"])
        assert int(refused.headers["retry-after"]) >= 1
        assert await counted(collector, "refused_total") > 0

        await asyncio.to_thread(own_broker.start)
        await until(lambda: _has_logged(collector, "clicks", total), seconds=60)
        await until(lambda: _has_logged(collector, "logs", accepted + 5), seconds=60)
        for stream in ("clicks", "logs", "pulses"):
            assert await balance(collector, stream) == 0
    clicks = [int(record.key or b"") for record in await collector.logged("clicks")]
    assert clicks == list(range(total))
    rates = [
        (json.loads(record.value or b"")["level"], headers(record).get("ce_sampledrate"))
        for record in await collector.logged("logs")
    ]
    assert rates[0] == ("debug", None)  # there was no pressure
    assert all(rate is None for level, rate in rates if level == "error")
    sampled = [float(rate) for level, rate in rates if level == "debug" and rate is not None]
    assert sampled
    assert all(0.05 <= rate < 1 for rate in sampled)


async def _is_full(collector: Collector) -> bool:
    return (await collector.http.get("/health/ready")).status_code == 503


async def _has_logged(collector: Collector, stream: str, count: int) -> bool:
    return await counted(collector, "logged_total", stream) == count


async def _grows(numbers: list[int]) -> None:
    enough = len(numbers) + 200
    await until(lambda: len(numbers) > enough, seconds=60)


async def _kafka_is(collector: Collector, state: str) -> bool:
    return bool((await collector.http.get("/health/ready")).json()["kafka"]["state"] == state)
