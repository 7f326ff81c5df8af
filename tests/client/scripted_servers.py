"""Scripted servers that disconnect, refuse and stall, which real servers do rarely."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from websockets.asyncio.server import ServerConnection, serve

SocketScript = Callable[[int, ServerConnection], Awaitable[None]]


@dataclass
class Response:
    """A scripted HTTP answer."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)

    def wire(self) -> bytes:
        body = b"" if self.body is None else json.dumps(self.body).encode()
        lines = [f"HTTP/1.1 {self.status} Said", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join([*lines, "", ""]).encode() + body


HttpScript = Callable[[int, str, bytes], Response | None]
BREAK_OFF = None  # instead of a response: take the request in, then close the connection


@dataclass
class HttpPeer:
    """Answers request after request by its script; remembers what it was sent."""

    script: HttpScript
    url: str = ""
    requests: list[tuple[str, bytes]] = field(default_factory=list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[HttpPeer]:
        async with await asyncio.start_server(self._talk, "127.0.0.1", 0) as server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield self

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await _head(reader):
                length = next(
                    (h for h in head[1:] if h.lower().startswith("content-length:")), ":0"
                )
                body = await reader.readexactly(int(length.partition(":")[2]))
                number = len(self.requests)
                self.requests.append((head[0], body))
                response = self.script(number, head[0], body)
                if response is None:
                    return
                writer.write(response.wire())
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def _head(reader: asyncio.StreamReader) -> list[str]:
    try:
        return (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    except asyncio.IncompleteReadError:
        return []


@dataclass
class SocketPeer:
    """A WebSocket server that runs a script for each subscription; remembers what was asked."""

    script: SocketScript
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[SocketPeer]:
        async with serve(self._talk, "127.0.0.1", 0) as server:
            self.url = f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
            yield self

    async def _talk(self, connection: ServerConnection) -> None:
        number = len(self.asked)
        self.asked.append(json.loads(await connection.recv()))
        try:
            await self.script(number, connection)
        finally:
            self.closed.set()


class StartHttp(Protocol):
    async def __call__(self, script: HttpScript) -> HttpPeer: ...


class StartSocket(Protocol):
    async def __call__(self, script: SocketScript) -> SocketPeer: ...
