"""Continuing from a position: on any server, from memory, from Kafka, or with a gap."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket as sockets
from functools import partial
from typing import Any

import pytest
import websockets
from confluent_kafka import Producer
from tests.serve.pipeline import SECONDS, Pipeline, Socket, socket, websocket_of
from tests.wait_until import until

from millstream.log.connection import client_config
from millstream.log.settings import LogSettings
from millstream.log.topic_names import view_topic
from millstream.serve.service import Server
from millstream.values.view_description import ViewColumn


def numbers(messages: list[dict[str, Any]]) -> list[int]:
    return [message["row"]["n"] for message in messages]


async def caught_up(server: Server, n: int, city: str = "Berlin") -> None:
    rows = server.context.views["by_city"].table.rows
    await until(lambda: rows.get(f'["{city}"]', {}).get("n") == n)


def has_applied(server: Server, count: int) -> bool:
    return server.context.views["by_city"].metrics.changes.total == count


async def read_until(client: Socket, n: int) -> list[dict[str, Any]]:
    """Messages up to the one that brings the n-th number."""
    messages = []
    while True:
        messages.append(message := await client.next())
        if message["type"] == "change" and message["row"] and message["row"]["n"] == n:
            return messages


async def test_two_servers_give_the_same_answer_and_one_continues_where_the_other_stopped(
    pipeline: Pipeline,
) -> None:
    for n in range(1, 6):
        pipeline.count("Berlin", n)
        pipeline.count("Aachen", n)
    pipeline.flush()
    async with pipeline.server() as one, pipeline.server() as other:
        async with socket(one) as client:
            first = await client.subscribe(view="by_city")
            pipeline.count("Berlin", 6)
            position = (await client.next())["position"]
        pipeline.count("Berlin", 7)
        async with socket(other) as client:
            assert (await client.subscribe(view="by_city"))["rows"][0] == first["rows"][0]
        async with socket(other) as client:
            message = await client.subscribe(view="by_city", after=position)
            assert (message["type"], message["row"]["n"]) == ("change", 7), "no snapshot again"


async def test_changes_that_are_no_longer_in_memory_are_read_from_kafka(pipeline: Pipeline) -> None:
    async with pipeline.server(recent_changes=5) as server:
        async with socket(server) as client:
            position = (await client.subscribe(view="by_city"))["position"]
        for n in [*range(1, 60), 40, 41, 42, *range(60, 101)]:  # with a replay within
            pipeline.count("Berlin", n)
        pipeline.flush()
        await caught_up(server, 100)
        async with socket(server) as client:
            await client.send(type="subscribe", id="a", view="by_city", after=position)
            messages = await read_until(client, 100)
            assert numbers(messages) == list(range(1, 101))
            pipeline.count("Berlin", 101)
            assert (await client.next())["row"]["n"] == 101


async def test_changes_written_in_transactions_are_read_from_kafka_without_a_gap(
    pipeline: Pipeline,
) -> None:
    columns = [ViewColumn("city", "string"), ViewColumn("n", "bigint")]
    pipeline.describe("by_city", ["city"], columns, accumulation="discard")
    pipeline.flush()
    topic = view_topic(pipeline.app.name, "by_city")
    writer = Producer(client_config(pipeline.log, transactional_id=topic))
    writer.init_transactions(30)
    async with pipeline.server(recent_changes=3) as server:
        await until(lambda: server.context.views["by_city"].is_uncompacted)
        async with socket(server) as client:
            position = (await client.subscribe(view="by_city"))["position"]
        for revision in range(1, 11):
            writer.begin_transaction()
            row = {"city": "Berlin", "n": 1, "_revision": revision}
            writer.produce(topic, json.dumps(row), '["Berlin"]')
            writer.commit_transaction(30)
        await until(lambda: has_applied(server, 10))
        async with socket(server) as client:
            first = await client.subscribe(view="by_city", after=position)
            messages = [first, *[await client.next() for _ in range(9)]]
            assert numbers(messages) == [1] * 10
            assert {message["type"] for message in messages} == {"change"}


async def test_clients_see_a_row_taken_back_and_then_the_next_one(pipeline: Pipeline) -> None:
    pipeline.count("Berlin", 1)
    async with pipeline.server() as server, socket(server) as client:
        await caught_up(server, 1)
        await client.subscribe(view="by_city")
        pipeline.put("by_city", ["Berlin"], {"city": "Berlin", "n": 1, "_kind": "retraction"}, 1)
        pipeline.count("Berlin", 2)
        taken, given = await client.next(), await client.next()
        assert taken["row"] == {"city": "Berlin", "n": 1, "_kind": "retraction"}
        assert given["row"] == {"city": "Berlin", "n": 2}


async def test_a_filter_applies_to_changes_from_kafka_too(pipeline: Pipeline) -> None:
    async with pipeline.server(recent_changes=2) as server:
        async with socket(server) as client:
            position = (await client.subscribe(view="by_city"))["position"]
        for n in range(1, 31):
            pipeline.count("Berlin", n)
            pipeline.count("Rome", n)
        pipeline.flush()
        await caught_up(server, 30, "Rome")
        async with socket(server) as client:
            await client.send(
                type="subscribe", id="a", view="by_city", after=position, where="city = 'Rome'"
            )
            messages = [m for m in await read_until(client, 30) if m["op"] == "upsert"]
            assert numbers(messages) == list(range(1, 31))
            assert {message["key"][0] for message in messages} == {"Rome"}


async def test_a_client_too_far_behind_gets_a_gap_and_a_snapshot(pipeline: Pipeline) -> None:
    async with pipeline.server(recent_changes=5, replay_limit=10) as server:
        async with socket(server) as client:
            position = (await client.subscribe(view="by_city"))["position"]
        for n in range(1, 51):
            pipeline.count("Berlin", n)
        pipeline.flush()
        await caught_up(server, 50)
        async with socket(server) as client:
            gap = await client.subscribe(view="by_city", after=position)
            assert (gap["type"], gap["asked"]) == ("gap", position)
            assert gap["reason"]
            snapshot = await client.next()
            assert snapshot["type"] == "snapshot"
            assert snapshot["rows"] == [{"key": ["Berlin"], "row": {"city": "Berlin", "n": 50}}]


@pytest.mark.parametrize("offsets", ["0=999999", "5=1", "0=1,99999999=3"])
async def test_an_invented_position_gives_a_gap(
    pipeline: Pipeline, server: Server, offsets: str
) -> None:
    epoch = server.context.views["by_city"].epoch
    async with socket(server) as client:
        assert (await client.subscribe(view="by_city", after=f"{epoch}:{offsets}"))["type"] == "gap"
        assert (await client.next())["type"] == "snapshot"
        pipeline.count("Berlin", 1)
        assert (await client.next())["type"] == "change"


async def test_a_recreated_view_is_a_new_epoch_for_all_clients(pipeline: Pipeline) -> None:
    async with pipeline.server() as server, socket(server) as client:
        await client.subscribe(view="by_city")
        for n in range(1, 6):
            pipeline.count("Berlin", n)
        old = (await read_until(client, 5))[-1]["position"]
        pipeline.recreate("by_city")
        columns = [ViewColumn("city", "string"), ViewColumn("n", "bigint")]
        pipeline.describe("by_city", ["city"], columns, generation="2")
        pipeline.count("Berlin", 1)
        pipeline.flush()
        gap = await client.next()
        while gap["type"] != "gap":
            gap = await client.next()
        assert gap["asked"].split(":")[0] == old.split(":")[0]
        assert gap["position"].split(":")[0] != old.split(":")[0]
        snapshot = await client.next()
        assert snapshot["type"] == "snapshot"
        if not snapshot["rows"]:
            assert (await client.next())["row"]["n"] == 1, "a lower number, of a new generation"
        else:
            assert snapshot["rows"][0]["row"]["n"] == 1
        async with socket(server) as late:
            assert (await late.subscribe(view="by_city", after=old))["type"] == "gap"


async def test_a_client_that_does_not_read_uses_no_memory_and_catches_up_later(
    pipeline: Pipeline,
) -> None:
    async with pipeline.server(recent_changes=50, buffer_bytes=20_000) as server:
        raw = sockets.socket()
        raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 8192)
        raw.setblocking(False)
        host, port = server.url.removeprefix("http://").split(":")
        await asyncio.get_running_loop().sock_connect(raw, (host, int(port)))
        async with socket(server, sock=raw, max_queue=1) as client:
            await client.subscribe(view="by_city")
            connection = websocket_of(server)
            transport = connection._transport.underlying_transport
            transport.get_extra_info("socket").setsockopt(
                sockets.SOL_SOCKET, sockets.SO_SNDBUF, 8192
            )
            text = "x" * 4000
            for n in range(1, 1001):
                pipeline.put("by_city", [text], {"city": text, "n": n}, n)
                if n % 50 == 0:
                    pipeline.flush()
                    await until(partial(has_applied, server, n))
                    assert transport.get_write_buffer_size() < 100_000
            messages = await read_until(client, 1000)
        kinds = {message["type"] for message in messages}
        assert "lag" in kinds
        seen = numbers([message for message in messages if message["type"] == "change"])
        assert seen == sorted(set(seen)), "nothing twice, nothing backwards"
        if "gap" not in kinds:
            assert seen == list(range(1, 1001)), "nothing missing"


async def test_a_slow_client_with_disconnect_is_disconnected(pipeline: Pipeline) -> None:
    async with (
        pipeline.server(buffer_bytes=20_000) as server,
        socket(server, max_queue=1) as client,
    ):
        await client.subscribe(view="by_city", when_slow="disconnect")
        text = "x" * 20_000
        n = 0
        while server.context.connections:
            n += 1
            pipeline.put("by_city", [text], {"city": text, "n": n}, n)
            await asyncio.sleep(0.001)
            assert n < 20_000
        with contextlib.suppress(websockets.ConnectionClosed):
            while True:
                await asyncio.wait_for(client.connection.recv(), SECONDS)
        assert client.connection.close_code == 4008


async def test_a_server_that_stops_tells_its_clients(pipeline: Pipeline) -> None:
    async with pipeline.server() as server:
        url = server.url.replace("http", "ws") + "/v1/connect"
        connection = await websockets.connect(url)
    with pytest.raises(websockets.ConnectionClosed) as closed:
        await asyncio.wait_for(connection.recv(), SECONDS)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1001


async def test_several_partitions_are_replayed_in_order_without_loss_or_repetition(
    log_settings: LogSettings, app_name: str
) -> None:
    pipeline = Pipeline(app_name, log_settings.model_copy(update={"partitions": 2}))
    cities = [f"city{i}" for i in range(6)]  # enough of them for both partitions
    async with pipeline.server(recent_changes=5) as one, pipeline.server() as other:
        async with socket(one) as client:
            position = (await client.subscribe(view="by_city"))["position"]
        for n in range(1, 21):
            for city in cities:
                pipeline.count(city, n)
        pipeline.flush()
        for server in (one, other):
            await until(partial(has_applied, server, 120))
        assert len(one.context.views["by_city"].table.offsets) == 2
        assert all(one.context.views["by_city"].table.offsets), "both partitions are in use"
        seen: dict[str, list[int]] = {city: [] for city in cities}
        for server, count in ((one, 50), (other, 70)):  # changes servers on the way
            async with socket(server) as client:
                await client.send(type="subscribe", id="a", view="by_city", after=position)
                for _ in range(count):
                    message = await client.next()
                    assert message["type"] == "change", message
                    seen[message["key"][0]].append(message["row"]["n"])
                    position = message["position"]
        assert seen == {city: list(range(1, 21)) for city in cities}


async def test_a_rebuilt_view_is_sent_as_one_complete_snapshot_of_a_new_epoch(
    pipeline: Pipeline,
) -> None:
    cities = [f"city {number}" for number in range(3000)]
    pipeline.count("Berlin", 7)
    pipeline.flush()
    async with pipeline.server() as server, socket(server) as client:
        first = await client.subscribe(view="by_city")
        assert [keyed["row"]["n"] for keyed in first["rows"]] == [7]
        topic = pipeline.edition("by_city", 1)
        for city in cities:
            pipeline.put("by_city", [city], {"city": city, "n": 1, "m": 2}, 1, topic=topic)
        pipeline.flush()
        pipeline.count("Berlin", 8)  # the old one is served until the new one is known
        assert (await client.next())["row"]["n"] == 8
        columns = [
            ViewColumn("city", "string"),
            ViewColumn("n", "bigint"),
            ViewColumn("m", "bigint"),
        ]
        pipeline.describe("by_city", ["city"], columns, generation="2", topic=topic)
        pipeline.flush()
        gap, snapshot = await client.next(), await client.next()
        assert (gap["type"], snapshot["type"]) == ("gap", "snapshot")
        assert sorted(keyed["row"]["city"] for keyed in snapshot["rows"]) == sorted(cities)
        assert snapshot["position"].split(":")[0] != first["position"].split(":")[0]
        pipeline.count("Berlin", 9)
        pipeline.put("by_city", ["Rome"], {"city": "Rome", "n": 1, "m": 2}, 1, topic=topic)
        assert (await client.next())["row"] == {"city": "Rome", "n": 1, "m": 2}
        async with pipeline.server() as late, socket(late) as newcomer:
            assert len((await newcomer.subscribe(view="by_city"))["rows"]) == len(cities) + 1
