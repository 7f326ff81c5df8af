"""A TCP server of lines, and TCP clients with lines, that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.connectors.conformance_case import Case, event
from tests.connectors.tcp_server import Connection, TcpServer, free_port
from tests.wait_until import until

from millstream.connectors import TcpLinesSource, TcpListener
from millstream.connectors.interface import SourceReader

_GARBAGE = b"\xff\xfe\n\n\r\n\x00{\n" + b"y" * 200_000 + b"\n"


def _lines(numbers: Sequence[int]) -> bytes:
    return b"".join(event(number) + b"\n" for number in numbers)


class TcpLinesCase(Case):
    name = "tcp lines"
    why_no_resume = "nothing in a line says where it is in the stream"

    async def start(self) -> None:
        self._server = TcpServer()
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    @property
    def source(self) -> TcpLinesSource:
        return TcpLinesSource(f"tcp://127.0.0.1:{self._server.port}", silence=self.silence)

    async def send(self, numbers: Sequence[int]) -> None:
        await (await self._server.connected()).write(_lines(numbers))

    async def pour(self, total: int) -> None:
        connection = await self._server.connected()
        for number in range(total):
            await connection.write(event(number, 900) + b"\n")
            self.poured = number + 1

    async def drop(self) -> None:
        self._server.drop()

    async def garbage(self) -> None:
        await (await self._server.connected()).write(_GARBAGE)

    async def stall(self) -> None:
        self._server.forget()


class TcpListenerCase(Case):
    name = "tcp listener"
    why_no_resume = "clients get no answer, so they cannot know what to resend"
    up = "listening"

    async def start(self) -> None:
        self._port = free_port()
        self._client: Connection | None = None
        self._silent: Connection | None = None

    async def stop(self) -> None:
        await self.drop()
        if self._silent is not None:
            self._silent.writer.close()

    @property
    def source(self) -> TcpListener:
        return TcpListener(f"tcp://127.0.0.1:{self._port}", idle=self.silence)

    async def send(self, numbers: Sequence[int]) -> None:
        # A client that was idle for too long reconnects; what it wrote meanwhile is lost.
        if self._client is None or self._client.reader.at_eof():
            await self.drop()
        await (await self._connected()).write(_lines(numbers))

    async def pour(self, total: int) -> None:
        client = await self._connected()
        for number in range(total):
            await client.write(event(number, 900) + b"\n")
            self.poured = number + 1

    async def drop(self) -> None:
        if self._client is not None:
            self._client.writer.transport.abort()
            self._client = None

    async def garbage(self) -> None:
        await (await self._connected()).write(_GARBAGE)

    async def stall(self) -> None:
        self._silent, self._client = await self._connected(), None

    async def noticed(self, reader: SourceReader) -> bool:
        assert self._silent is not None
        return await self._silent.reader.read() == b""  # it was disconnected

    async def _connected(self) -> Connection:
        async def connect() -> bool:
            try:
                found = await asyncio.open_connection("127.0.0.1", self._port)
            except ConnectionError:
                return False
            self._client = Connection(*found)
            return True

        if self._client is None:
            await until(connect)
        assert self._client is not None
        return self._client
