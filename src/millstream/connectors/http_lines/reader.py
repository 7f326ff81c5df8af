"""Reader of an endless HTTP response with one event per line."""

from __future__ import annotations

from millstream.connectors.http_lines.description import HttpLinesSource
from millstream.connectors.interface import ReaderOutput
from millstream.connectors.reading.http_response import UnexpectedStatus, open_response, read_chunks
from millstream.connectors.reading.line_splitter import LineSplitter, chunk_size
from millstream.connectors.reading.reconnecting_reader import ReconnectingReader
from millstream.connectors.source_options import seconds


class HttpLinesReader(ReconnectingReader[HttpLinesSource]):
    """Keeps one request open, and offers the lines of its response."""

    async def read(self, output: ReaderOutput) -> None:
        """Read until the response ends."""
        self.least_pause = 0.0
        try:
            async with open_response(
                self.source.url, self.source.headers, self.settings
            ) as response:
                self.connected()
                lines, size = LineSplitter(self.settings), chunk_size(self.settings)
                async for chunk in read_chunks(response, seconds(self.source.silence)):
                    for start in range(0, len(chunk), size):
                        await self._offer_lines(output, lines, chunk[start : start + size])
                await self.hand_over(output, lines.end())
        except UnexpectedStatus as error:
            self.least_pause = error.retry_after
            raise

    async def _offer_lines(self, output: ReaderOutput, lines: LineSplitter, chunk: bytes) -> None:
        await self.hand_over(output, lines.feed(chunk))
        if skipped := lines.skipped():
            self.missed(skipped, "the line is too long")
