"""Connections that are slow or silent, too many connections, and too large requests."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.wait_until import until
from tests.web.echo_server import EchoServer, echo_server, read_answer, request

from millstream.web import http_protocol
from millstream.web.auth.api_keys import ApiKeyFile

HEAD = b"POST /v1/streams/clicks HTTP/1.1\r\nhost: localhost\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


async def drip(writer: asyncio.StreamWriter, data: bytes, seconds: float) -> None:
    """Send one byte after the other until the connection is closed."""
    while not writer.is_closing():
        writer.write(data)
        await asyncio.sleep(seconds)


async def test_endless_headers_are_refused(tmp_path: Path) -> None:
    async with echo_server(tmp_path, header_timeout=0.4) as server:
        async with server.connect() as (reader, writer):
            writer.write(HEAD)
            dripping = asyncio.create_task(drip(writer, b"a", 0.02))
            async with asyncio.timeout(10):
                answer = await read_answer(reader)
            assert (answer.status, answer.headers["connection"]) == (408, "close")
            assert "headers were not complete" in answer.problem()["detail"]
            dripping.cancel()
        async with server.connect() as (reader, _), asyncio.timeout(10):  # says nothing at all
            assert await reader.read() == b""
        assert server.server.limits.refused["slow_headers"] == 2
        await until(lambda: server.server.limits.count == 0)


async def test_a_slow_body_is_refused_and_a_steady_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "_BODY_GRACE", 1.0)
    async with echo_server(tmp_path, min_body_rate=1000) as server:
        started = time.monotonic()
        async with (
            server.connect() as (reader, writer),
            server.connect() as (silent, said),
            server.connect() as (steady, sends),
        ):
            writer.write(HEAD + b"content-length: 100000\r\n\r\n")
            said.write(CHUNKED)
            sends.write(HEAD + b"content-length: 8000\r\n\r\n")
            tasks = [
                asyncio.create_task(drip(writer, b"a", 0.05)),
                asyncio.create_task(drip(sends, b"a" * 200, 0.05)),
            ]
            async with asyncio.timeout(20):
                for each in (reader, silent, steady):
                    answer = await read_answer(each)
                    expected = 200 if each is steady else 408
                    assert answer.status == expected
            for task in tasks:
                task.cancel()
        assert time.monotonic() - started > 0.9
        assert server.server.limits.refused["slow_body"] == 2
        assert server.echo.bodies == [b"a" * 8000]
        await until(lambda: server.server.limits.count == 0)


async def test_an_idle_connection_is_closed_but_not_before_its_time(tmp_path: Path) -> None:
    async with (
        echo_server(tmp_path, idle_timeout=1.0) as server,
        server.connect() as (reader, writer),
        asyncio.timeout(10),
    ):
        for _ in range(6):
            writer.write(request())
            assert (await read_answer(reader)).status == 200
            await asyncio.sleep(0.2)
        started = time.monotonic()
        assert await reader.read() == b""
        assert time.monotonic() - started > 0.3


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EchoServer]:
    async with echo_server(tmp_path, write_timeout=0.5, header_timeout=5) as running:
        yield running


async def test_a_client_that_never_reads_is_disconnected_and_holds_no_memory(
    server: EchoServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.echo.large = b"yes"  # 8 MB each
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", server.port))
        client.send(request() * 200)  # all at once, and never a byte read
        await until(lambda: server.echo.bodies)
        [connection] = server.server.server_state.connections
        most = 0

        def is_cut() -> bool:
            nonlocal most
            if not connection.transport.is_closing():
                most = max(most, connection.transport.get_write_buffer_size())
            return server.server.limits.count == 0

        await until(is_cut)
        assert len(server.echo.bodies) <= 2  # the next answer waits until this one is read
        assert 0 < most < 10_000_000
        assert server.server.limits.refused["unread"] == 1
    assert caplog.text == ""


async def test_a_client_that_reads_slowly_gets_all_of_its_answer(server: EchoServer) -> None:
    server.echo.large = b"yes"
    async with server.connect(limit=1024) as (reader, writer):
        writer.write(request())
        got = 0
        while got < 8_000_000:
            got += len(await reader.read(400_000))
            await asyncio.sleep(0.01)
    assert server.server.limits.refused["unread"] == 0


async def test_a_client_that_closes_its_half_is_disconnected(server: EchoServer) -> None:
    async with server.connect() as (reader, writer):
        writer.write(HEAD + b"content-length: 100\r\n\r\nhalf")
        writer.write_eof()
        assert await reader.read() == b""
    await until(lambda: server.server.limits.count == 0)
    assert server.echo.bodies == []


async def test_one_connection_too_many_is_refused_until_another_one_ends(tmp_path: Path) -> None:
    async with echo_server(tmp_path, max_connections_per_address=2) as server:
        async with server.connect() as (first, writer), server.connect():
            await until(lambda: server.server.limits.count == 2)
            async with server.connect() as (reader, _), asyncio.timeout(10):
                answer = await read_answer(reader)
                assert (answer.status, answer.headers["retry-after"]) == (503, "1")
                assert "too many connections" in answer.problem()["detail"]
                assert await reader.read() == b""
            writer.write(request())
            assert (await read_answer(first)).status == 200
        await until(lambda: server.server.limits.count == 0)
        assert (await server.ask()).status == 200
        assert server.server.limits.refused == {"connections_per_address": 1}


async def test_the_number_of_connections_is_limited(tmp_path: Path) -> None:
    async with echo_server(tmp_path, max_connections=1) as server, server.connect():
        await until(lambda: server.server.limits.count == 1)
        assert b"503" in await server.exchange(b"")
        assert server.server.limits.refused == {"connections": 1}


TOO_LARGE = {
    "value": HEAD + b"x: " + b"a" * 20_000 + b"\r\n\r\n",
    "open value": HEAD + b"x: " + b"a" * 20_000,
    "path": b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
    "open query": b"GET /?" + b"a" * 20_000,
    "many": HEAD + b"".join(b"x%d: y\r\n" % number for number in range(101)) + b"\r\n",
    "blank lines": b"\r\n" * 10_000,
    "trailers": CHUNKED + b"1\r\na\r\n0\r\n" + b"trailer: b\r\n" * 3000,
    "trailer": CHUNKED + b"1\r\na\r\n0\r\ntrailer: " + b"b" * 40_000,
    "chunk extension": CHUNKED + b"1;ext=" + b"e" * 40_000,
}


async def test_headers_that_are_too_large_are_refused_wherever_they_come(
    server: EchoServer,
) -> None:
    for name, data in TOO_LARGE.items():
        async with server.connect() as (reader, writer), asyncio.timeout(10):
            for at in range(0, len(data), 5000):  # so that no read takes all of it
                writer.write(data[at : at + 5000])
                await asyncio.sleep(0.001)
            answer = await read_answer(reader)
        assert answer.status == 431, name
        assert "raise collect.max_header_bytes" in answer.problem()["detail"]
    assert server.echo.bodies == []


async def test_large_bodies_in_a_row_are_not_taken_for_large_headers(server: EchoServer) -> None:
    data = request(body=b"b" * 60_000)
    async with server.connect() as (reader, writer), asyncio.timeout(20):
        for cut in (3, 50, 59_000):  # the head of the next in one piece with the body before it
            stream = data + data + data
            for piece in (stream[: len(data) + cut], stream[len(data) + cut :]):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.05)
            for _ in range(3):
                assert (await read_answer(reader)).status == 200
    assert server.echo.bodies == [b"b" * 60_000] * 9


async def test_trailers_are_no_headers(tmp_path: Path) -> None:
    key = ApiKeyFile(tmp_path / "keys.json").create("shop", ["*"])
    async with echo_server(tmp_path, auth=["key"]) as server:
        trailing = b"2\r\n{}\r\n0\r\nx-api-key: %b\r\n\r\n"
        async with server.connect() as (reader, writer):
            writer.write(CHUNKED + trailing % key.encode())
            assert (await read_answer(reader)).status == 401


AMBIGUOUS = [
    HEAD + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}",
    HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    HEAD + b"content-length: -1\r\n\r\n",
    HEAD + b"content-length: 99999999999999999999999\r\n\r\n",
    HEAD + b"content-length: 2_0\r\n\r\n",
    HEAD + b"transfer-encoding: chunked, identity\r\n\r\n",
    CHUNKED + b"zz\r\n",
    CHUNKED + b"fffffffffffffffff\r\n",
    HEAD + b"a b: c\r\n\r\n",
    CHUNKED + b"0\r\ncontent-length: 5\r\n\r\n",
    HEAD + b"a: b\0c\r\n\r\n",
    HEAD + b"upgrade: websocket\r\nconnection: upgrade\r\ncontent-length: 2\r\n\r\n{}",
    b"CONNECT x:1 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
]


async def test_ambiguous_requests_are_refused(server: EchoServer) -> None:
    for data in AMBIGUOUS:
        answer = await server.exchange(data + b"\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 "), data
        assert answer.count(b"HTTP/1.1 ") == 1, data
    assert set(server.echo.bodies) <= {b""}


async def test_requests_in_a_row_are_answered_in_their_order(server: EchoServer) -> None:
    data = b"".join(request(f"/{number}", b"x" * number) for number in range(50))
    async with server.connect() as (reader, writer), asyncio.timeout(10):
        writer.write(data)
        paths = [(await read_answer(reader)).body for _ in range(50)]
    assert [b'"path":"/%d"' % number in body for number, body in enumerate(paths)] == [True] * 50


async def test_a_response_in_progress_is_finished_before_garbage_closes_the_connection(
    server: EchoServer,
) -> None:
    server.echo.hold = asyncio.Event()
    async with server.connect() as (reader, writer), asyncio.timeout(10):
        writer.write(request() + b"garbage\r\n\r\n")
        await until(lambda: server.echo.bodies)
        server.echo.hold.set()
        assert (await read_answer(reader)).status == 200
        await reader.read()
    await until(lambda: server.server.limits.count == 0)


async def test_after_an_early_response_the_rest_of_the_body_has_little_time(
    tmp_path: Path,
) -> None:
    async with (
        echo_server(tmp_path, auth=["key"]) as server,
        server.connect() as (reader, writer),
        asyncio.timeout(10),
    ):
        writer.write(HEAD + b"content-length: 1000000\r\n\r\n")
        assert (await read_answer(reader)).status == 401
        writer.write(b"b" * 1_000_000)  # it may go on for a while, and the next one is heard
        writer.write(request())
        assert (await read_answer(reader)).status == 401
