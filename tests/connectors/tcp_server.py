"""A TCP server for peers that the tests write byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self

from tests.wait_until import until


@dataclass
class Connection:
    """The connection of one client."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def write(self, data: bytes) -> None:
        """Send; waits while the client does not read. Errors of a lost client are ignored."""
        with contextlib.suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()


def chunked(data: bytes) -> bytes:
    """Data in HTTP's chunked encoding."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A free port."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class TcpServer:
    """Serves the newest client; `greet` runs before that client becomes `connection`."""

    def __init__(self, greet: Callable[[Connection], Awaitable[None]] | None = None) -> None:
        self.connection: Connection | None = None
        self.connections = 0
        self.port = 0
        self._greet = greet
        self._all: list[Connection] = []

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self.drop()
        for connection in self._all:
            connection.writer.transport.abort()
        self._server.close()
        await self._server.wait_closed()

    async def connected(self) -> Connection:
        """The client, as soon as there is one."""
        await until(lambda: self.connection is not None)
        assert self.connection is not None
        return self.connection

    def drop(self) -> None:
        """Abort the current connection."""
        if self.connection is not None:
            self.connection.writer.transport.abort()
            self.connection = None

    def forget(self) -> None:
        """Leave the current connection open, but send nothing more on it."""
        self.connection = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        self._all.append(connection)
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            if self._greet is not None:
                await self._greet(connection)
            self.connection = connection
