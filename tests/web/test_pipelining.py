"""Requests that a peer sends without waiting for answers: other peers have their turn."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from functools import partial
from pathlib import Path

import pytest
from tests.wait_until import until
from tests.web.echo_server import EchoServer, echo_server, read_answer, request

from millstream.web.http_protocol import LimitedHttpProtocol

CONNECTIONS, REQUESTS = 10, 2000
GET = b"GET /%d HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def test_many_requests_in_a_row_are_parsed_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = 0
    whole = LimitedHttpProtocol.on_headers_complete

    def counting(protocol: LimitedHttpProtocol) -> None:
        nonlocal parsed
        parsed += 1
        whole(protocol)

    monkeypatch.setattr(LimitedHttpProtocol, "on_headers_complete", counting)
    async with echo_server(tmp_path) as server:
        server.echo.hold = asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(server.connect()) for _ in range(CONNECTIONS)]
            for _, writer in peers:
                writer.write(b"".join(GET % number for number in range(REQUESTS)))
            await until(lambda: len(server.echo.bodies) == CONNECTIONS)
            async with server.connect() as (reader, writer):  # comes last
                writer.write(request("/last"))
                await until(lambda: len(server.echo.bodies) > CONNECTIONS)
                assert parsed == CONNECTIONS + 1
                server.echo.hold.set()
                assert b'"/last"' in (await read_answer(reader)).body
                assert len(server.echo.bodies) <= 4 * CONNECTIONS
            for reader, _ in peers:
                for number in range(REQUESTS):
                    assert b'"/%d"' % number in (await read_answer(reader)).body
        assert parsed == CONNECTIONS * REQUESTS + 1
        assert server.server.limits.memory == 0


@pytest.mark.parametrize("piece", [1, 7, 100, 100_000])
async def test_requests_of_all_kinds_in_a_row_are_told_apart(tmp_path: Path, piece: int) -> None:
    head = b"POST /c HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    data = [
        request("/a", b"\r\n\r\nGET /no HTTP/1.1\r\n\r\n"),
        b"\r\n" + request("/b", b""),
        head + b"2\r\n\r\n\r\n4;x=y\r\n\r\n\r\n\r\n0\r\nmore: said\r\n\r\n",
        GET % 1,
        head + b"0\r\n\r\n",
        request("/a", b"x" * 300),
    ]
    sent = b"".join(data * 3)
    async with echo_server(tmp_path) as server, server.connect() as (reader, writer):
        for at in range(0, len(sent), piece):
            writer.write(sent[at : at + piece])
            await asyncio.sleep(0)
        paths = [(await read_answer(reader)).body[:10] for _ in range(len(data) * 3)]
        assert [path[9:10] for path in paths] == [b"/"] * len(paths)
    assert [len(body) for body in server.echo.bodies] == [24, 0, 6, 0, 0, 300] * 3


def _has_taken(server: EchoServer, requests: int) -> bool:
    return len(server.echo.bodies) >= requests


async def test_all_unread_answers_and_waiting_requests_together_are_limited(tmp_path: Path) -> None:
    async with echo_server(tmp_path, max_buffer_memory=20_000_000) as server:
        server.echo.large = b"yes"  # 8 MB each
        loop, limits = asyncio.get_running_loop(), server.server.limits
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(socket.socket()) for _ in range(6)]
            for number, client in enumerate(clients):
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.setblocking(False)
                await loop.sock_connect(client, ("127.0.0.1", server.port))
                await loop.sock_sendall(client, request())
                await until(partial(_has_taken, server, number + 1))
            # How many it takes depends on what the kernel buffers.
            await until(lambda: 0 < limits.refused["buffer_memory"] == 6 - limits.count)
            assert 0 < limits.memory <= 20_000_000
            # Those that left it longest are cut: the last one still gets its answer.
            got = b""
            while len(got) < 8_000_000:
                got += await loop.sock_recv(clients[-1], 1 << 20)
        await until(lambda: limits.memory == 0)
