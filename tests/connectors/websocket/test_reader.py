"""The WebSocket reader against a real peer that misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from tests.collect.recording_output import RecordingOutput
from tests.collect.websocket_peer import Peer
from tests.connectors.conformance_case import running
from tests.wait_until import until
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from millstream.collect.settings import CollectSettings
from millstream.connectors import WebSocketSource
from millstream.connectors.websocket.reader import WebSocketReader

_QUICK = CollectSettings(
    reconnect_first=0.02, reconnect_most=0.05, ping_after=0.1, ping_timeout=0.5, max_body=1000
)


@contextlib.asynccontextmanager
async def reading(
    source: WebSocketSource, settings: CollectSettings = _QUICK
) -> AsyncIterator[tuple[WebSocketReader, RecordingOutput]]:
    reader, output = WebSocketReader("rsvps", source, settings), RecordingOutput()
    try:
        async with running(reader, output):
            yield reader, output
    finally:
        assert reader.state.state == "stopped"


async def test_text_and_binary_messages_are_received_as_bytes(peer: Peer) -> None:
    async def serve(connection: ServerConnection) -> None:
        await connection.send('{"name":"é"}')
        await connection.send(b"\xff\x00")
        await connection.wait_closed()

    peer.serve = serve
    async with reading(WebSocketSource(peer.url)) as (reader, output):
        await until(lambda: len(output.messages) == 2)
        assert output.messages == ['{"name":"é"}'.encode(), b"\xff\x00"]
        assert (reader.state.state, reader.state.received) == ("connected", 2)
        assert reader.state.error == ""


async def test_an_unreachable_peer_is_retried(peer: Peer) -> None:
    await peer.stop()
    async with reading(WebSocketSource(peer.url)) as (reader, output):
        await until(lambda: reader.state.state == "retrying")
        assert "refused" in reader.state.error or "connect" in reader.state.error.lower()

        async def serve(connection: ServerConnection) -> None:
            await connection.send("back")
            await connection.wait_closed()

        peer.serve = serve
        await peer.start(peer.port)
        await until(lambda: output.messages == [b"back"])
        assert (reader.state.state, reader.state.reconnects) == ("connected", 0)


async def test_a_peer_that_closes_at_once_is_not_reconnected_too_often(peer: Peer) -> None:
    async def serve(connection: ServerConnection) -> None:
        await connection.close()

    peer.serve = serve
    slower = _QUICK.model_copy(update={"reconnect_first": 0.2, "reconnect_most": 60.0})
    async with reading(WebSocketSource(peer.url), slower) as (reader, _):
        await until(lambda: reader.state.reconnects >= 1)
        # The pauses double: there are few attempts in half a second.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await asyncio.Event().wait()
        assert peer.connections < 12
        assert reader.state.state in ("retrying", "connecting")


async def test_a_quiet_peer_that_answers_pings_stays_connected(peer: Peer) -> None:
    released = asyncio.Event()

    async def serve(connection: ServerConnection) -> None:
        await released.wait()
        await connection.send("still here")
        await connection.wait_closed()

    peer.serve = serve
    async with reading(WebSocketSource(peer.url)) as (reader, output):
        await until(lambda: reader.state.state == "connected")
        quiet = 3 * (_QUICK.ping_after + _QUICK.ping_timeout)
        asyncio.get_running_loop().call_later(quiet, released.set)
        await until(lambda: output.messages == [b"still here"])
        assert (peer.connections, reader.state.reconnects) == (1, 0)


async def test_a_message_beyond_the_limit_closes_the_connection_with_an_error(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    async def serve(connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            await connection.send("x" * 1001 if peer.connections == 1 else "y" * 1000)
        await connection.wait_closed()

    peer.serve = serve
    async with reading(WebSocketSource(peer.url)) as (_, output):
        await until(lambda: output.messages == [b"y" * 1000])
        assert "1009" in caplog.text


async def test_headers_are_sent_and_secrets_are_not_shown(peer: Peer) -> None:
    seen: list[str | None] = []

    async def serve(connection: ServerConnection) -> None:
        assert connection.request is not None
        seen.append(connection.request.headers.get("authorization"))
        await connection.wait_closed()

    peer.serve = serve
    source = WebSocketSource(f"{peer.url}?token=secret", headers={"Authorization": "Bearer abc"})
    async with reading(source) as (reader, _):
        await until(lambda: seen)
        assert seen == ["Bearer abc"]
        assert "secret" not in reader.state.url


@pytest.mark.parametrize("status", [401, 404, 503])
async def test_a_refused_handshake_is_reported_and_retried(status: int) -> None:
    requests = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        requests += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with reading(WebSocketSource(f"ws://127.0.0.1:{port}/")) as (source, _):
            await until(lambda: requests >= 3)
            assert str(status) in source.state.error


@pytest.mark.parametrize("place", ["ws://127.0.0.1:99999/", "ws://127.0.0.1:x/", "ws://a..b/"])
async def test_a_redirect_to_an_invalid_address_is_retried(place: str) -> None:
    asked = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 302 Found\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n"
        writer.write(head.encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with reading(WebSocketSource(f"ws://127.0.0.1:{port}")) as (reader, _):
            await until(lambda: asked > 2)
            await until(lambda: "address" in reader.state.error)
