"""The workers of one collector, as one of them sees the others: it can ask them.

Each listens on a Unix socket in the home for the path of a GET, and answers with what its own
application says, unchecked: only this machine's user can open these sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path
from typing import Any

import msgspec

from millstream.web.asgi import Application, Message, Scope

_LONGEST_PATH = 4096


class Answer(msgspec.Struct, frozen=True):
    """What an application said to a GET."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body, read."""
        content: dict[str, Any] = msgspec.json.decode(self.body)
        return content


class Siblings:
    """The sockets of all workers. Belongs to one event loop."""

    def __init__(self, folder: Path, worker: int, workers: int) -> None:
        self.worker, self.workers = worker, workers
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A socket's path may have 107 bytes only; by way of a descriptor it is short.
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._server: asyncio.Server | None = None

    @property
    def others(self) -> list[int]:
        return [number for number in range(self.workers) if number != self.worker]

    async def listen(self, application: Application) -> None:
        """Answer the others from now on."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError):
                path = (await reader.readline()).decode().rstrip("\n")
                writer.write(msgspec.msgpack.encode(await get(application, path)))
                await writer.drain()
            writer.close()

        path = self._path(self.worker)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of the one before us
        bound = socket.socket(socket.AF_UNIX)
        bound.bind(path)
        os.chmod(path, 0o600)
        self._server = await asyncio.start_unix_server(serve, sock=bound, limit=_LONGEST_PATH)

    async def ask(self, worker: int, path: str, seconds: float) -> Answer | None:
        """What another worker answers to a GET; None if it does not within so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                reader, writer = await asyncio.open_unix_connection(self._path(worker))
                try:
                    writer.write(path.encode() + b"\n")
                    return msgspec.msgpack.decode(await reader.read(), type=Answer)
                finally:
                    writer.close()
        except (OSError, TimeoutError, msgspec.MsgspecError):
            return None

    async def ask_all(self, path: str, seconds: float) -> dict[int, Answer | None]:
        """The same of all others."""
        answers = await asyncio.gather(*(self.ask(each, path, seconds) for each in self.others))
        return dict(zip(self.others, answers, strict=True))

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
        os.close(self._folder)

    def _path(self, worker: int) -> str:
        return f"/proc/self/fd/{self._folder}/{worker}"


async def get(application: Application, path: str) -> Answer:
    """What an application answers to a GET of ours."""
    status, headers, body = 500, [], b""

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, headers, body
        if message["type"] == "http.response.start":
            status, headers = message["status"], list(message["headers"])
        else:
            body += message.get("body", b"")

    scope: Scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "headers": [],
    }
    await application(scope, receive, send)
    return Answer(status, headers, body)
