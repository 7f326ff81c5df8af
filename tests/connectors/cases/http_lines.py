"""A misbehaving server of an endless HTTP response."""

from __future__ import annotations

from collections.abc import Sequence

from tests.connectors.conformance_case import Case, event
from tests.connectors.tcp_server import Connection, TcpServer, chunked

from millstream.connectors import HttpLinesSource


class HttpLinesCase(Case):
    name = "http lines"
    why_no_resume = "nothing in a line says where it is in the stream"

    async def start(self) -> None:
        self._server = TcpServer(self._greet)
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    @property
    def source(self) -> HttpLinesSource:
        return HttpLinesSource(f"http://127.0.0.1:{self._server.port}/lines", silence=self.silence)

    async def send(self, numbers: Sequence[int]) -> None:
        connection = await self._server.connected()
        # Chunks end anywhere, not where lines do.
        text = b"".join(event(number) + b"\r\n" for number in numbers)
        middle = len(text) // 2
        await connection.write(chunked(text[:middle]) + chunked(text[middle:]))

    async def pour(self, total: int) -> None:
        connection = await self._server.connected()
        for number in range(total):
            await connection.write(chunked(event(number, 900) + b"\n"))
            self.poured = number + 1

    async def drop(self) -> None:
        self._server.drop()

    async def garbage(self) -> None:
        connection = await self._server.connected()
        await connection.write(chunked(b"\xff\xfe\n\n\r\n\x00{\n" + b"y" * 200_000 + b"\n"))
        await connection.write(b"not a chunk\r\n")
        self._server.forget()

    async def stall(self) -> None:
        self._server.forget()

    async def _greet(self, connection: Connection) -> None:
        await connection.reader.readuntil(b"\r\n\r\n")
        await connection.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
