"""A WebSocket server that misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from tests.collect.websocket_peer import Peer
from tests.connectors.conformance_case import Case, event
from tests.wait_until import until
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from millstream.connectors import WebSocketSource


class WebSocketCase(Case):
    name = "websocket"
    why_no_resume = "nothing in a message says where it is in the stream"

    async def start(self) -> None:
        self._connection: ServerConnection | None = None
        self._peer = Peer()
        self._peer.serve = self._serve
        await self._peer.start()

    async def stop(self) -> None:
        await self._peer.stop()

    @property
    def source(self) -> WebSocketSource:
        return WebSocketSource(self._peer.url)

    async def send(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            with contextlib.suppress(ConnectionClosed):
                await (await self._connected()).send(event(number))

    async def pour(self, total: int) -> None:
        connection = await self._connected()
        for number in range(total):
            await connection.send(event(number, 900))
            self.poured = number + 1

    async def drop(self) -> None:
        if self._connection is not None:
            self._connection.transport.abort()
            self._connection = None

    async def garbage(self) -> None:
        connection = await self._connected()
        await connection.send(b"\xff\x00\xfe")
        connection.transport.write(b"\xff" * 100)  # not a frame

    async def stall(self) -> None:
        connection = await self._connected()
        connection.transport.pause_reading()  # so no ping is answered
        self._connection = None

    async def _serve(self, connection: ServerConnection) -> None:
        self._connection = connection
        await asyncio.Event().wait()

    async def _connected(self) -> ServerConnection:
        await until(lambda: self._connection is not None)
        assert self._connection is not None
        return self._connection
