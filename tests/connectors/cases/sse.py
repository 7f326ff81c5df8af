"""A server of server-sent events that misbehaves."""

from __future__ import annotations

from collections.abc import Sequence

from tests.connectors.conformance_case import Case, event
from tests.connectors.tcp_server import Connection, TcpServer

from millstream.connectors import SseSource


class SseCase(Case):
    name = "sse"

    async def start(self) -> None:
        self._kept: list[int] = []
        self._server = TcpServer(self._greet)
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    @property
    def source(self) -> SseSource:
        return SseSource(f"http://127.0.0.1:{self._server.port}/events", silence=self.silence)

    async def send(self, numbers: Sequence[int]) -> None:
        self._kept += numbers
        if self._server.connection is not None:
            await self._server.connection.write(b"".join(_written(number) for number in numbers))

    async def pour(self, total: int) -> None:
        connection = await self._server.connected()
        for number in range(total):
            await connection.write(_written(number, 900))
            self.poured = number + 1

    async def drop(self) -> None:
        self._server.drop()

    async def garbage(self) -> None:
        connection = await self._server.connected()
        await connection.write(b"data\n\n:\n\nid: \x00\n\n\xff\xfe\r\r\n\n" + b"y" * 200_000)
        self._server.drop()

    async def stall(self) -> None:
        self._server.forget()

    async def _greet(self, connection: Connection) -> None:
        head = (await connection.reader.readuntil(b"\r\n\r\n")).lower().decode()
        after = next(
            (int(line.split(":")[1]) for line in head.split("\r\n") if "last-event-id" in line), -1
        )
        await connection.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        missing = self._kept[self._kept.index(after) + 1 :] if after in self._kept else self._kept
        await connection.write(b"".join(_written(number) for number in missing))


def _written(number: int, padding: int = 0) -> bytes:
    return b"id: %d\ndata: %s\n\n" % (number, event(number, padding))
