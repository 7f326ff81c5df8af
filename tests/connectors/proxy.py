"""A proxy between a reader and a real server that can misbehave."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

_CHUNK = 64 << 10


@dataclass(eq=False)
class _Link:
    """One connection of a reader, with its connection to the server."""

    reader: asyncio.StreamWriter
    server: asyncio.StreamWriter
    flowing: asyncio.Event = field(default_factory=asyncio.Event)

    def cut(self) -> None:
        self.flowing.set()
        self.reader.transport.abort()
        self.server.transport.abort()


class Proxy:
    """Forwards bytes in both directions. Its faults affect only the open connections."""

    def __init__(self, server_port: int) -> None:
        self.port = 0
        self._server_port = server_port
        self._links: set[_Link] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_CHUNK)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self.cut()
        self._server.close()
        await self._server.wait_closed()

    @property
    def is_used(self) -> bool:
        """Whether a reader is connected."""
        return bool(self._links)

    def cut(self) -> None:
        """Break the connections."""
        for link in self._links:
            link.cut()

    def stall(self) -> None:
        """Stop forwarding, but keep the connections open."""
        for link in self._links:
            link.flowing.clear()

    def inject(self, data: bytes) -> None:
        """Send bytes to the readers that do not come from the server."""
        for link in self._links:
            link.reader.write(data)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream, back = await asyncio.open_connection(
                "127.0.0.1", self._server_port, limit=_CHUNK
            )
        except OSError:
            writer.transport.abort()
            return
        link = _Link(writer, back)
        link.flowing.set()
        self._links.add(link)
        try:
            await asyncio.gather(_forward(reader, back, link), _forward(upstream, writer, link))
        finally:
            link.cut()
            self._links.discard(link)


async def _forward(source: asyncio.StreamReader, target: asyncio.StreamWriter, link: _Link) -> None:
    with contextlib.suppress(OSError):
        while chunk := await source.read(_CHUNK):
            await link.flowing.wait()
            target.write(chunk)
            await target.drain()
    link.cut()
