"""Subscriptions over the WebSocket."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
import websockets
from tests.serve.pipeline import SECONDS, Pipeline, Socket, socket
from tests.wait_until import until

from millstream.serve.service import Server


async def collect(client: Socket, count: int) -> list[dict[str, Any]]:
    return [await client.next() for _ in range(count)]


async def test_a_subscriber_gets_the_rows_and_then_their_changes(
    pipeline: Pipeline, server: Server
) -> None:
    async with socket(server) as client:
        first = await client.subscribe(view="by_city")
        assert (first["type"], first["view"], first["rows"]) == ("snapshot", "by_city", [])
        pipeline.count("Berlin", 1)
        change = await client.next()
        assert (change["type"], change["id"], change["op"]) == ("change", "a", "upsert")
        assert (change["key"], change["row"]) == (["Berlin"], {"city": "Berlin", "n": 1})
        pipeline.put("by_city", ["Berlin"], None)
        gone = await client.next()
        assert (gone["op"], gone["key"], gone["row"]) == ("delete", ["Berlin"], None)


async def test_no_change_is_lost_or_repeated_after_the_snapshot(
    pipeline: Pipeline, server: Server
) -> None:
    async def write() -> None:
        for n in range(1, 400):
            pipeline.count("Berlin", n)
            await asyncio.sleep(0)

    writing = asyncio.create_task(write())
    async with socket(server) as client:
        for attempt in range(20):
            first = await client.subscribe(id=f"s{attempt}", view="by_city")
            while first["type"] != "snapshot" or first["id"] != f"s{attempt}":
                first = await client.next()
            held = first["rows"][0]["row"]["n"] if first["rows"] else 0
            if held < 399:
                message = await client.next()
                while message["id"] != f"s{attempt}":
                    message = await client.next()
                assert message["row"]["n"] == held + 1
            await client.send(type="unsubscribe", id=f"s{attempt}")
        await writing


async def test_no_number_goes_backwards_when_analysis_replays(
    pipeline: Pipeline, server: Server
) -> None:
    async with socket(server) as client:
        await client.subscribe(view="by_city")
        for n in (1, 2, 3, 4, 5, 3, 4, 5, 6):
            pipeline.count("Berlin", n)
        seen = [message["row"]["n"] for message in await collect(client, 6)]
        assert seen == [1, 2, 3, 4, 5, 6]


async def test_rows_that_a_restart_repeats_are_sent_once(
    pipeline: Pipeline, server: Server
) -> None:
    async with socket(server) as client:
        assert (await client.subscribe(view="newest"))["rows"] == []
        for number in (1, 2, 3, 2, 3, 4):
            pipeline.append(number)
        messages = await collect(client, 4)
        assert [message["row"]["id"] for message in messages] == [1, 2, 3, 4]
        assert {message["key"] for message in messages} == {None}


async def test_a_row_that_no_longer_matches_the_filter_is_deleted(
    pipeline: Pipeline, server: Server
) -> None:
    async with socket(server) as client:
        await client.subscribe(view="by_city", where="n < 3", select=["n"])
        pipeline.count("Oslo", 5)
        for n in (1, 2, 3, 4):
            pipeline.count("Rome", n)
        pipeline.count("Bern", 1)
        messages = await collect(client, 4)
        assert [(m["op"], m["key"], m["row"]) for m in messages] == [
            ("upsert", ["Rome"], {"n": 1}),
            ("upsert", ["Rome"], {"n": 2}),
            ("delete", ["Rome"], None),
            ("upsert", ["Bern"], {"n": 1}),
        ]


async def test_a_subscription_to_an_id_in_use_replaces_it(
    pipeline: Pipeline, server: Server
) -> None:
    pipeline.count("Rome", 1)
    pipeline.count("Oslo", 1)
    await until(lambda: len(server.context.views["by_city"].table) == 2)
    async with socket(server) as client:
        assert len((await client.subscribe(view="by_city"))["rows"]) == 2
        narrowed = await client.subscribe(view="by_city", where="city = 'Oslo'")
        assert [row["key"] for row in narrowed["rows"]] == [["Oslo"]]
        pipeline.count("Rome", 2)
        pipeline.count("Oslo", 2)
        assert (await client.next())["key"] == ["Oslo"]
        assert len(server.context.views["by_city"].subscribers) == 1


async def test_lineage_is_sent_on_request(pipeline: Pipeline, server: Server) -> None:
    pipeline.count("Rome", 7)
    await until(lambda: len(server.context.views["by_city"].table))
    async with socket(server) as client:
        plain = await client.subscribe(view="by_city")
        assert plain["rows"][0]["row"] == {"city": "Rome", "n": 7}
        full = await client.subscribe(view="by_city", lineage=True)
        assert full["rows"][0]["row"]["_revision"] == 7


async def test_a_streams_events_are_read_once_for_all_clients(
    pipeline: Pipeline, server: Server
) -> None:
    for number in range(3):
        pipeline.event(id=number, city="Rome")
    pipeline.flush()
    async with socket(server) as one, socket(server) as other:
        first = await one.subscribe(stream="rsvps", limit=2)
        assert first["stream"] == "rsvps"
        assert [row["row"]["id"] for row in first["rows"]] == [1, 2]
        await other.subscribe(stream="rsvps", where="id % 2 = 0")
        pipeline.event(id=3, city="Oslo")
        pipeline.event(id=4, city="Oslo")
        assert [m["row"]["id"] for m in await collect(one, 2)] == [3, 4]
        assert (await other.next())["row"] == {"id": 4, "city": "Oslo"}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"view": "by_citty"}, "did you mean 'by_city'"),
    ({"stream": "rvsps"}, "did you mean 'rsvps'"),
    ({"view": "by_city", "where": "m > 1"}, "there is no column 'm'"),
    ({"view": "by_city", "where": "n >"}, "cannot read"),
    ({"view": "by_city", "select": ["town"]}, "there is no column 'town'"),
    ({"view": "by_city", "after": "yesterday"}, "position"),
    ({"view": "by_city", "limit": -1}, "negative"),
    ({"view": "by_city", "when_slow": "cry"}, "cry|enum"),
    ({"view": "by_city", "filter": "n > 1"}, "filter"),
    ({"view": "by_city", "stream": "rsvps"}, "either a view, a stream"),
    ({}, "either a view, a stream"),
    ({"view": 3}, "str"),
]


async def test_a_wrong_subscription_is_an_error_and_the_connection_stays(server: Server) -> None:
    async with socket(server) as client:
        for asked, complaint in WRONG:
            answer = await client.subscribe(**asked)
            assert (answer["type"], answer["id"]) == ("error", "a"), asked
            assert re.search(complaint, answer["detail"]), answer
        for garbage in ("nonsense", "[]", "{}", '{"type":"dance"}', "\x00", "null", '"a"'):
            await client.connection.send(garbage)
            assert (await client.next())["type"] == "error"
        await client.connection.send(b'{"type":"ping"}')
        assert await client.next() == {"type": "pong"}


async def test_a_message_in_several_frames_is_joined(server: Server) -> None:
    async with socket(server) as client:
        await client.connection.send(iter(['{"type":', '"ping"}']))
        assert await client.next() == {"type": "pong"}


@pytest.mark.parametrize("pieces", [False, True])
async def test_an_oversized_message_closes_the_connection(server: Server, pieces: bool) -> None:
    async with socket(server) as client:
        big = "x" * 100_000
        try:
            await client.connection.send(
                iter([big[i : i + 999] for i in range(0, 99_900, 999)]) if pieces else big
            )
            await asyncio.wait_for(client.connection.recv(), SECONDS)
        except websockets.ConnectionClosed:
            pass
        assert client.connection.close_code == 1009
    async with socket(server) as client:
        await client.send(type="ping")
        assert await client.next() == {"type": "pong"}


async def test_invalid_bytes_close_only_that_connection(server: Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    for garbage in (b"\xff" * 64, b"\x81\xff" + b"\xff" * 8, b"\x83\x80" + b"0" * 4, b"\x00" * 9):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"GET /v1/connect HTTP/1.1\r\nHost: localhost\r\n"
            b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert b"101" in await reader.readuntil(b"\r\n\r\n")
        writer.write(garbage)
        writer.write_eof()
        await asyncio.wait_for(reader.read(), SECONDS)
        writer.close()
    await until(lambda: not server.context.connections)
    async with socket(server) as client:
        await client.send(type="ping")
        assert await client.next() == {"type": "pong"}


async def test_a_connection_has_a_limit_of_subscriptions(pipeline: Pipeline) -> None:
    async with pipeline.server(max_subscriptions=2) as server, socket(server) as client:
        for name in ("a", "b"):
            assert (await client.subscribe(id=name, view="by_city"))["type"] == "snapshot"
        assert "unsubscribe" in (await client.subscribe(id="c", view="by_city"))["detail"]
        await client.send(type="unsubscribe", id="a")
        assert await client.next() == {"type": "unsubscribed", "id": "a"}
        assert (await client.subscribe(id="c", view="by_city"))["type"] == "snapshot"


async def test_a_page_of_another_origin_may_not_connect(server: Server) -> None:
    with pytest.raises(websockets.InvalidStatus, match="403"):
        async with socket(server, origin="https://evil.example"):
            pass
    async with socket(server, origin=server.url) as client:
        assert (await client.subscribe(view="by_city"))["type"] == "snapshot"


async def test_there_is_no_websocket_at_other_paths(server: Server) -> None:
    url = server.url.replace("http", "ws") + "/v1/conect"
    with pytest.raises(websockets.InvalidStatus, match="404"):
        async with websockets.connect(url):
            pass


async def test_nothing_is_left_when_clients_disconnect(pipeline: Pipeline, server: Server) -> None:
    for _ in range(20):
        async with socket(server) as client:
            await client.subscribe(view="by_city")
            await client.subscribe(id="b", stream="rsvps")
    await until(lambda: not server.context.connections)
    assert not server.context.views["by_city"].subscribers
    assert not server.context.streams.served["rsvps"].subscribers
    assert json.dumps(len(server.context.connections)) == "0"
