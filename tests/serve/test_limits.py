"""Limits for clients: unread answers, headers, silence, many requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket as sockets
import time
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import httpx
import pytest
from tests.serve.pipeline import Pipeline, events, following, socket, websocket_of
from tests.serve.transports.test_frames import raw
from tests.wait_until import until
from tests.web.echo_server import read_answer, request
from websockets.exceptions import InvalidStatus

from millstream.serve.service import Server

JSON = {"content-type": "application/json"}
LARGE = json.dumps({"sql": "SELECT repeat('x', 8000000) AS x"}).encode()


@contextlib.asynccontextmanager
async def connected(
    server: Server,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to write raw bytes on."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(server.url).port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def exchange(server: Server, data: bytes) -> bytes:
    """All that comes back until the server closes the connection."""
    async with asyncio.timeout(30), connected(server) as (reader, writer):
        writer.write(data)
        with contextlib.suppress(ConnectionError):
            return await reader.read()
    return b""


async def test_all_unread_answers_to_queries_together_are_limited(pipeline: Pipeline) -> None:
    async with pipeline.server(max_buffer_memory=10_000_000) as server:
        limits, loop = server.http.limits, asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                client = stack.enter_context(sockets.socket())
                client.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
                client.setblocking(False)
                await loop.sock_connect(client, ("127.0.0.1", urlsplit(server.url).port))
                await loop.sock_sendall(client, request("/v1/query", LARGE, headers=JSON))
            await until(lambda: 0 < limits.refused["buffer_memory"] == 4 - limits.count)
            assert 0 < limits.memory <= 10_000_000
            async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
                assert (
                    await http.post("/v1/query", content=LARGE, headers=JSON)
                ).status_code == 200
                metrics = (await http.get("/metrics")).text
                assert 'turned_away_total{reason="buffer_memory"}' in metrics


async def test_an_answer_that_is_too_large_is_refused(pipeline: Pipeline) -> None:
    async with (
        pipeline.server(query_bytes=1_000_000) as server,
        httpx.AsyncClient(base_url=server.url, timeout=30) as http,
    ):
        answer = await http.post("/v1/query", content=LARGE, headers=JSON)
        assert answer.status_code == 400
        assert "serve.query_bytes" in answer.json()["detail"]


async def test_a_client_that_is_silent_or_does_not_read_is_disconnected(pipeline: Pipeline) -> None:
    async with pipeline.server(header_timeout=0.5, write_timeout=0.5) as server:
        limits = server.http.limits
        assert b" 408 " in await exchange(server, b"GET / HTTP/1.1\r\nhost: localhost\r\n")
        assert await exchange(server, b"") == b""
        with sockets.socket() as client:
            client.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", urlsplit(server.url).port or 0))
            client.sendall(request("/v1/query", LARGE, headers=JSON))
            await until(lambda: limits.refused["unread"])
        await until(lambda: limits.count == 0)


async def test_a_websocket_whose_peer_vanished_is_removed(pipeline: Pipeline) -> None:
    # The peer neither answers pings nor closes: as a machine that lost its network.
    async with pipeline.server(ping_seconds=0.2) as server, raw(server), socket(server) as other:
        await until(lambda: len(server.context.connections) == 2)
        await until(lambda: len(server.context.connections) == 1)
        assert server.http.limits.count == 1
        assert (await other.subscribe(view="by_city"))["type"] == "snapshot"


async def test_the_kernel_cuts_off_vanished_peers_of_event_streams_but_not_of_websockets(
    pipeline: Pipeline,
) -> None:
    option = (sockets.IPPROTO_TCP, sockets.TCP_USER_TIMEOUT)
    async with pipeline.server(write_timeout=7.0) as server:
        async with (
            httpx.AsyncClient(base_url=server.url) as http,
            events(http, "/v1/views/by_city/changes"),
        ):
            [http_connection] = server.http.server_state.connections
            held = http_connection.transport.get_extra_info("socket")
            assert held.getsockopt(*option) == 7000
        async with socket(server):
            await until(lambda: len(server.context.connections) == 1)
            transport = websocket_of(server)._transport.underlying_transport
            assert transport.get_extra_info("socket").getsockopt(*option) == 0


async def test_a_slow_handshake_is_cut_off(pipeline: Pipeline) -> None:
    async with pipeline.server(header_timeout=0.3) as server, connected(server) as (reader, writer):
        writer.write(b"GET /v1/connect HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n")
        answer = await asyncio.wait_for(reader.read(), 10)
        assert answer.startswith(b"HTTP/1.1 408 ")


async def test_large_headers_and_ambiguous_requests_are_refused(server: Server) -> None:
    for data, status in {
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n": 431,
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 100_000: 431,
        b"GET /health/live HTTP/1.1\r\n\r\n": 400,
        b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n": 400,
        b"POST /v1/query HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: gzip, chunked\r\n\r\n"
        b"2\r\n{}\r\n0\r\n\r\n": 501,
    }.items():
        assert (await exchange(server, data)).startswith(b"HTTP/1.1 %d " % status), data[:99]


async def test_a_target_without_a_path_is_answered(server: Server) -> None:
    for method, status in ((b"OPTIONS", b"405"), (b"GET", b"404")):
        head = b" * HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        answer = await exchange(server, method + head)
        assert answer.startswith(b"HTTP/1.1 " + status)


async def test_a_request_for_another_host_is_refused(pipeline: Pipeline) -> None:
    async with pipeline.server(allowed_hosts=["views.example"]) as server:
        evil = {"host": "evil.example", "origin": "http://evil.example"}
        async with httpx.AsyncClient(base_url=server.url) as http:
            refused = await http.get("/v1/views/by_city", headers=evil)
            assert refused.status_code == 421
            assert "serve.allowed_hosts" in refused.json()["detail"]
            named = await http.get("/v1/views/by_city", headers={"host": "views.example"})
            assert named.status_code == 200
        handshake = request(
            "/v1/connect",
            b"",
            method="GET",
            headers={
                **evil,
                "connection": "Upgrade",
                "upgrade": "websocket",
                "sec-websocket-version": "13",
                "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
            },
        )
        assert b" 421 " in await exchange(server, handshake)


async def test_websockets_count_as_connections(pipeline: Pipeline) -> None:
    async with pipeline.server(max_connections_per_address=2) as server:
        async with socket(server) as first, socket(server):
            assert (await first.subscribe(view="by_city"))["type"] == "snapshot"
            with pytest.raises(InvalidStatus, match="503"):
                async with socket(server):
                    pass
        await until(lambda: server.http.limits.count == 0)
        async with socket(server) as again:
            assert (await again.subscribe(view="by_city"))["type"] == "snapshot"


async def test_a_frame_that_comes_with_the_handshake_is_read(server: Server) -> None:
    subscribe = json.dumps({"type": "ping"}).encode()
    frame = bytes([0x81, 0x80 | len(subscribe), 0, 0, 0, 0]) + subscribe
    async with asyncio.timeout(30), connected(server) as (reader, writer):
        writer.write(
            b"GET /v1/connect HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
            b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n" + frame
        )
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b'{"type":"pong"}')


async def test_a_quiet_stream_of_events_is_not_closed(pipeline: Pipeline) -> None:
    limits = {"idle_timeout": 0.3, "write_timeout": 0.3, "header_timeout": 0.3}
    async with (
        pipeline.server(**limits) as server,
        httpx.AsyncClient(base_url=server.url, timeout=30) as http,
        events(http, "/v1/views/by_city/changes") as stream,
    ):
        assert (await following(stream))["type"] == "snapshot"
        await asyncio.sleep(1.5)  # several times what a silent request may take
        pipeline.count("Rome", 1)
        pipeline.flush()
        assert (await following(stream))["row"] == {"city": "Rome", "n": 1}


async def test_many_requests_on_one_connection_delay_no_other_client(server: Server) -> None:
    data = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n" * 3000
    async with contextlib.AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(connected(server)) for _ in range(10)]
        for _, writer in peers:
            writer.write(data)
        await read_answer(peers[0][0])  # it has begun
        began = time.monotonic()
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
            assert (await http.get("/health/live")).status_code == 200
        took = time.monotonic() - began
        for reader, _ in peers[1:]:
            for _ in range(3000):
                assert (await read_answer(reader)).status == 200
        # The client here takes part of each turn too; all 30,000 take several times as long.
        assert took < (time.monotonic() - began) / 4
