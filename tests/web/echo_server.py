"""The collector's HTTP server around an echo application, and raw connections to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millstream.collect.http.server import CollectServer
from millstream.collect.settings import CollectSettings
from millstream.runtime.listen import bind
from millstream.web.asgi import (
    Disconnected,
    Receive,
    Scope,
    Send,
    read_body,
    send_json,
    send_problem,
)
from millstream.web.auth.caller import check_writes
from millstream.web.auth.rate import charge
from millstream.web.problem import Problem

STREAMS = ("clicks", "notes", "names")


async def _grow(size: int) -> None:
    """Accept a body of any size."""


@dataclass
class Echo:
    """An application that answers each request with its path and length."""

    bodies: list[bytes] = field(default_factory=list)
    large: bytes = b""  # answered to /large
    hold: asyncio.Event | None = None  # answers wait for it

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(receive, 0, 1_000_000, 30.0, _grow)
            self.bodies.append(body)
            if scope["path"].startswith("/v1/receipts/"):
                check_writes(scope, scope["path"].removeprefix("/v1/receipts/"))
            charge(scope, max(1, body.count(b"\n")))
            if self.hold is not None:
                await self.hold.wait()
            said: dict[str, Any] = {"path": scope["path"], "length": len(body)}
            await send_json(send, {**said, "large": "x" * 8_000_000 if self.large else ""})
        except Problem as problem:
            await send_problem(send, problem)
        except Disconnected:
            pass


@dataclass(frozen=True)
class Answer:
    """The answer to one request."""

    status: int
    headers: dict[str, str]
    body: bytes

    def problem(self) -> dict[str, Any]:
        """Its problem+json content."""
        assert self.headers["content-type"] == "application/problem+json", self
        content: dict[str, Any] = json.loads(self.body)
        assert content["status"] == self.status
        return content


def request(
    path: str = "/v1/streams/clicks",
    body: bytes = b"{}",
    *,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """The bytes of a request."""
    lines = {"host": "localhost", "content-length": str(len(body)), **(headers or {})}
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{text}\r\n".encode("latin-1") + body


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """The next answer on a connection."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Answer(int(first.split()[1]), headers, body)


@dataclass(frozen=True)
class EchoServer:
    """A listening server."""

    server: CollectServer
    echo: Echo
    port: int
    url: str

    @contextlib.asynccontextmanager
    async def connect(
        self, **more: Any
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Open a connection for raw bytes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **more)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def ask(self, *request_of: Any, seconds: float = 30.0, **more: Any) -> Answer:
        """The answer to one request, on a new connection."""
        async with asyncio.timeout(seconds), self.connect() as (reader, writer):
            writer.write(request(*request_of, **more))
            return await read_answer(reader)

    async def exchange(self, data: bytes, *, seconds: float = 30.0) -> bytes:
        """Everything it answers to some bytes until it closes the connection."""
        async with asyncio.timeout(seconds), self.connect() as (reader, writer):
            writer.write(data)
            with contextlib.suppress(ConnectionError):
                return await reader.read()
        return b""


@contextlib.asynccontextmanager
async def echo_server(
    home: Path, *, application: Any = None, **settings: Any
) -> AsyncIterator[EchoServer]:
    """Run a server with these collector settings."""
    echo = Echo()
    chosen = CollectSettings(port=0, **settings)
    listener: socket.socket = bind(chosen.host, 0, tier="collect")
    server = CollectServer(
        application or echo, chosen, streams=STREAMS, keys_file=home / "keys.json"
    )
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(server.watch())
        serving = tasks.create_task(server.serve([listener]))
        await server.ready()
        url = server.url(listener)
        try:
            yield EchoServer(server, echo, listener.getsockname()[1], url)
        finally:
            server.should_exit = True
            await serving
            watching.cancel()
