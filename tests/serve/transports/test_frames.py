"""Invalid WebSocket frames, over a plain socket: each closes its connection quickly."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import struct
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.serve.pipeline import SECONDS, Pipeline, websocket_of
from tests.serve.pipeline import socket as connected
from tests.wait_until import until

from millstream.serve.service import Server

TEXT, BINARY, CONTINUATION, CLOSE, PING, PONG = 0x1, 0x2, 0x0, 0x8, 0x9, 0xA
FIN, RSV1, RSV2, RSV3 = 0x80, 0x40, 0x20, 0x10


def frame(first: int, payload: bytes = b"") -> bytes:
    """A frame as a client sends it; its mask is zero, so that the payload can be read."""
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", first, 0x80 | size)
    else:
        head = struct.pack("!BBH", first, 0x80 | 126, size)
    return head + bytes(4) + payload


@contextlib.asynccontextmanager
async def raw(server: Server) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that is a WebSocket already, with little room for what it does not read."""
    host, port = server.url.removeprefix("http://").split(":")
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plain, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=plain, limit=4096)
    writer.write(
        f"GET /v1/connect HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    )
    assert b"101" in await reader.readuntil(b"\r\n\r\n")
    try:
        yield reader, writer
    finally:
        writer.close()


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    first, size = await asyncio.wait_for(reader.readexactly(2), SECONDS)
    if size == 126:
        (size,) = struct.unpack("!H", await reader.readexactly(2))
    return first & 0x0F, await reader.readexactly(size)


async def close_code(reader: asyncio.StreamReader) -> int:
    opcode, payload = await read_frame(reader)
    assert opcode == CLOSE, (opcode, payload)
    code: int = struct.unpack("!H", payload[:2])[0]
    return code


PING_MESSAGE = b'{"type":"ping"}'
DEEP = b'{"type":"ping","x":' + b"[" * 30_000 + b"]" * 30_000 + b"}"
WRONG: list[tuple[str, bytes, int]] = [
    ("RSV1", frame(FIN | RSV1 | TEXT, PING_MESSAGE), 1002),
    ("RSV2", frame(FIN | RSV2 | TEXT, PING_MESSAGE), 1002),
    ("RSV3 of a ping", frame(FIN | RSV3 | PING), 1002),
    ("a continuation of nothing", frame(FIN | CONTINUATION, PING_MESSAGE), 1002),
    ("an open continuation of nothing", frame(CONTINUATION, b"x"), 1002),
    ("text while a message is open", frame(TEXT, b"{") + frame(FIN | TEXT, PING_MESSAGE), 1002),
    ("binary while a message is open", frame(TEXT, b"{") + frame(BINARY, b"}"), 1002),
    ("text after an empty first frame", frame(TEXT) + frame(FIN | TEXT, PING_MESSAGE), 1002),
    ("a long ping", frame(FIN | PING, b"x" * 126), 1002),
    ("a fragmented ping", frame(PING), 1002),
    ("a fragmented close", frame(CLOSE, struct.pack("!H", 1000)), 1002),
    ("an unknown opcode", frame(FIN | 0x3), 1002),
    ("a frame without mask", b"\x81\x00", 1002),
    ("bad UTF-8", frame(FIN | TEXT, b'{"type":"p\xff"}'), 1007),
    ("bad UTF-8 in pieces", frame(TEXT, b'{"\xc3') + frame(FIN | CONTINUATION, b'("}'), 1007),
    ("bad UTF-8 in binary", frame(FIN | BINARY, b'{"type":"p\xff"}'), 1007),
    ("deep JSON", frame(FIN | TEXT, DEEP), 1008),
]


@pytest.mark.parametrize(("data", "code"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
async def test_an_invalid_frame_closes_the_connection_with_the_right_code(
    server: Server, data: bytes, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with raw(server) as (reader, writer):
        writer.write(data)
        assert await close_code(reader) == code
        assert await asyncio.wait_for(reader.read(), SECONDS) == b""
    await until(lambda: not server.context.connections)
    assert not [r for r in caplog.records if r.exc_info and r.levelno >= logging.ERROR]


async def test_control_frames_may_come_between_the_pieces_of_a_message(server: Server) -> None:
    async with raw(server) as (reader, writer):
        writer.write(frame(TEXT, b'{"type":') + frame(FIN | PING, b"now"))
        assert await read_frame(reader) == (PONG, b"now")
        writer.write(
            frame(FIN | PONG) + frame(CONTINUATION) + frame(FIN | CONTINUATION, b'"ping"}')
        )
        assert await read_frame(reader) == (TEXT, b'{"type":"pong"}')
        writer.write(frame(FIN | TEXT, '{"type":"ping","é":1}'.encode()))
        assert (await read_frame(reader))[0] == TEXT


async def test_empty_frames_do_not_block_the_server(server: Server) -> None:
    async with connected(server) as other, raw(server) as (reader, writer):
        writer.write(frame(TEXT) + frame(CONTINUATION) * 60_000)
        began = time.perf_counter()
        await other.send(type="ping")
        assert await other.next() == {"type": "pong"}
        assert time.perf_counter() - began < 10.0
        with contextlib.suppress(ConnectionError):  # it ended before it had read all of them
            assert await close_code(reader) == 1009
    await until(lambda: not server.context.connections)


async def flood(server: Server, data: bytes, count: int) -> int:
    """Send without reading; the most that the server held unsent for it."""
    async with raw(server) as (_, writer):
        connection = websocket_of(server)
        unsent = connection._transport.underlying_transport.get_write_buffer_size
        most = 0
        with contextlib.suppress(ConnectionError):
            for _ in range(count):
                writer.write(data)
                await writer.drain()
                most = max(most, unsent())
            await asyncio.sleep(0)
        return max(most, unsent())


def message(**fields: Any) -> bytes:
    return frame(FIN | TEXT, json.dumps(fields).encode())


FLOODS = {
    "pings": frame(FIN | PING, b"x" * 125),
    "our pings": message(type="ping"),
    "errors": message(type="dance", id="x" * 500),
    "unsubscribed": message(type="unsubscribe", id="x" * 500),
    "subscriptions and their ends": message(type="subscribe", id="a", view="by_city")
    + message(type="unsubscribe", id="a"),
    "subscriptions that replace each other": message(type="subscribe", id="a", view="by_city"),
}


@pytest.mark.parametrize("data", FLOODS.values(), ids=FLOODS)
async def test_a_client_that_does_not_read_uses_little_memory(
    pipeline: Pipeline, data: bytes
) -> None:
    async with pipeline.server() as server:
        for number in range(200):
            pipeline.count(f"{number} is the city with this long name", 1)
        await until(lambda: len(server.context.views["by_city"].table) == 200)
        piece = data * (65_536 // len(data))
        assert await flood(server, piece, 30_000_000 // len(piece)) < 1_500_000
        async with connected(server) as client:
            await client.send(type="ping")
            assert await client.next() == {"type": "pong"}
        await until(lambda: not server.context.connections)


async def test_a_client_that_reads_again_gets_its_newest_pong_and_its_subscriptions(
    pipeline: Pipeline,
) -> None:
    async with pipeline.server() as server, raw(server) as (reader, writer):
        connection = websocket_of(server)
        count = 0
        while not connection._is_full:
            writer.write(frame(FIN | PING, b"x" * 125) * 500)
            await writer.drain()
            count += 1
            assert count < 1_000
        writer.write(frame(FIN | PING, b"last") + message(type="subscribe", id="b", view="by_city"))
        await writer.drain()
        answers: list[tuple[int, bytes]] = []
        while len(answers) < 2:
            opcode, payload = await read_frame(reader)
            if payload != b"x" * 125:
                answers.append((opcode, payload[:20]))
        assert answers == [(PONG, b"last"), (TEXT, b'{"type":"snapshot","')]
