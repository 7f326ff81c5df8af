"""A WebSocket server for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from websockets.asyncio.server import Server, ServerConnection, serve

Serve = Callable[[ServerConnection], Awaitable[None]]


class Peer:
    """A WebSocket server; the test decides what each connection gets."""

    def __init__(self) -> None:
        self.connections = 0
        self.serve: Serve = lambda connection: connection.wait_closed()
        self._server: Server | None = None
        self._serving: set[asyncio.Future[None]] = set()
        self.url = ""

    async def start(self, port: int = 0) -> None:
        self._server = await serve(
            self._serve, "127.0.0.1", port, ping_interval=None, compression=None
        )
        self.port = next(iter(self._server.sockets)).getsockname()[1]
        self.url = f"ws://127.0.0.1:{self.port}/events"

    async def stop(self) -> None:
        for task in list(self._serving):
            task.cancel()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, connection: ServerConnection) -> None:
        self.connections += 1
        task = asyncio.ensure_future(self.serve(connection))
        self._serving.add(task)
        try:
            await asyncio.wait([task])
        finally:
            self._serving.discard(task)
            connection.transport.abort()
