"""Readers of lines over TCP: from one server, or from many clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from urllib.parse import urlsplit

from millstream.connectors.interface import ReaderOutput
from millstream.connectors.reading.allowed_senders import AllowedSenders
from millstream.connectors.reading.batcher import MessageBatch
from millstream.connectors.reading.http_response import keepalive_options
from millstream.connectors.reading.line_splitter import LineSplitter, chunk_size
from millstream.connectors.reading.reconnecting_reader import ConnectionLost, ReconnectingReader, S
from millstream.connectors.settings import SourceSettings
from millstream.connectors.source_options import endpoint, seconds
from millstream.connectors.tcp.description import TcpLinesSource, TcpListener

_OPEN_SECONDS = 10.0

_log = logging.getLogger(__name__)


class _LineReader(ReconnectingReader[S]):
    """Reads the lines of one connection."""

    async def _read_lines(
        self,
        output: ReaderOutput,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        silence: float | None,
    ) -> None:
        """Read until the peer ends; ConnectionLost if it is silent for too long while we read."""
        for option in keepalive_options(self.settings):
            writer.get_extra_info("socket").setsockopt(*option)
        lines, size = LineSplitter(self.settings), chunk_size(self.settings)
        while True:
            try:
                async with asyncio.timeout(silence):
                    chunk = await reader.read(size)
            except TimeoutError:
                raise ConnectionLost(f"no data for {silence:g} s") from None
            await self.hand_over(output, lines.feed(chunk) if chunk else lines.end())
            if skipped := lines.skipped():
                self.missed(skipped, "the line is too long")
            if not chunk:
                return


class TcpLinesReader(_LineReader[TcpLinesSource]):
    """Keeps one connection open."""

    async def read(self, output: ReaderOutput) -> None:
        """Read until the server closes the connection."""
        host, port = endpoint(self.source.url)
        encrypted = urlsplit(self.source.url).scheme == "tls"
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                reader, writer = await asyncio.open_connection(
                    host, port, ssl=encrypted or None, limit=chunk_size(self.settings)
                )
        except TimeoutError:
            raise ConnectionLost(f"no connection in {_OPEN_SECONDS:g} s") from None
        try:
            self.connected()
            await self._read_lines(output, reader, writer, seconds(self.source.silence))
        finally:
            writer.transport.abort()


class TcpListenerReader(_LineReader[TcpListener]):
    """Listens, and reads many connections at once, each in its order.

    While the output is full, no connection is read: TCP slows the clients, and memory stays small.
    """

    def __init__(self, stream: str, source: TcpListener, settings: SourceSettings) -> None:
        super().__init__(stream, source, settings)
        self._allowed = AllowedSenders(source.allow)
        self._connections_open = 0
        self._output_lock = asyncio.Lock()  # one connection at a time waits for the output

    async def read(self, output: ReaderOutput) -> None:
        """Listen until cancelled; OSError if the port is not available."""
        tasks: asyncio.TaskGroup | None = None

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            assert tasks is not None
            tasks.create_task(self._serve(output, reader, writer))

        server = await asyncio.start_server(
            accept, *endpoint(self.source.url), limit=chunk_size(self.settings), start_serving=False
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                await server.start_serving()
                self.listening()
                await asyncio.Event().wait()
        finally:
            server.close()

    async def hand_over(self, output: ReaderOutput, batches: Iterable[MessageBatch]) -> None:
        """Offer the batches, one connection at a time."""
        async with self._output_lock:
            await super().hand_over(output, batches)

    async def _serve(
        self, output: ReaderOutput, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        address = writer.get_extra_info("peername")[0]
        try:
            if not self._allowed.allows(address):
                self.log_rarely(f"refused {address}, which is not in a network of `allow`")
            elif self._connections_open >= self.source.max_connections:
                self.log_rarely(f"refused {address}: {self._connections_open} connections are open")
            else:
                self._connections_open += 1
                try:
                    await self._read_lines(output, reader, writer, seconds(self.source.idle))
                finally:
                    self._connections_open -= 1
        except (OSError, ConnectionLost) as error:
            _log.debug("%s disconnected: %s", address, error)
        finally:
            writer.transport.abort()
