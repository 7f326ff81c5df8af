"""Reader of server-sent events."""

from __future__ import annotations

import re

from millstream.connectors.interface import ReaderOutput
from millstream.connectors.reading.batcher import Batcher
from millstream.connectors.reading.frame_splitter import FrameSplitter
from millstream.connectors.reading.http_response import UnexpectedStatus, open_response, read_chunks
from millstream.connectors.reading.reconnecting_reader import ConnectionLost, ReconnectingReader
from millstream.connectors.settings import SourceSettings
from millstream.connectors.source_options import seconds
from millstream.connectors.sse.description import SseSource

_SENDABLE = re.compile(rb"[\x21-\x7e\x80-\xff]([\x20-\x7e\x80-\xff]{0,2046}[\x21-\x7e\x80-\xff])?")


class SseReader(ReconnectingReader[SseSource]):
    """Keeps one request open, and resumes after the last event that it handed over."""

    def __init__(self, stream: str, source: SseSource, settings: SourceSettings) -> None:
        super().__init__(stream, source, settings)
        self._types = frozenset(type_.encode() for type_ in source.types)
        self._last_id: bytes | None = None
        self._retry = 0.0  # seconds, as the server requested in the stream

    async def read(self, output: ReaderOutput) -> None:
        """Read until the response ends."""
        if self._last_id is None:
            self._last_id = output.bookmark
        headers: dict[str, str | bytes] = {
            "accept": "text/event-stream",
            "cache-control": "no-cache",
            **self.source.headers,
        }
        if self._last_id:
            headers["last-event-id"] = self._last_id
        try:
            async with open_response(self.source.url, headers, self.settings) as response:
                form = response.headers.get("content-type", "").partition(";")[0].strip()
                if form.lower() != "text/event-stream":
                    raise ConnectionLost(
                        f"it answers with {form[:50] or 'no content type'}, not with events"
                    )
                self.connected()
                self.least_pause = self._retry
                parser = EventStreamParser(self.settings.max_body, self._last_id)
                async for chunk in read_chunks(response, seconds(self.source.silence)):
                    await self._offer_events(parser, chunk, output)
        except UnexpectedStatus as error:
            self.least_pause = max(error.retry_after, self._retry)
            raise

    async def _offer_events(
        self, parser: EventStreamParser, chunk: bytes, output: ReaderOutput
    ) -> None:
        batcher = Batcher(self.settings)
        for type_, data, last_id in parser.feed(chunk):
            if not self._types or type_ in self._types:
                batcher.add(data, bookmark=last_id)
        if parser.retry is not None:
            self.least_pause = self._retry = parser.retry / 1000
        if skipped := parser.skipped + batcher.oversized:
            parser.skipped = 0
            self.missed(skipped, "larger than collect.max_body")
        await self.hand_over(output, batcher.drain())
        # Kept in memory too: after a reconnect, the peer need not resend what was handed over but
        # is not on disk yet.
        self._last_id = parser.last_id


class EventStreamParser:
    """The parser of the HTML standard, for UTF-8 bytes."""

    def __init__(self, longest: int, last_id: bytes | None) -> None:
        self.last_id = last_id
        self.retry: int | None = None  # milliseconds
        self.skipped = 0
        self._frames = FrameSplitter(b"\n\n", longest)
        self._first = True
        self._after_return = (
            False  # the last byte was \r: a \n after it belongs to the same line end
        )

    def feed(self, chunk: bytes) -> list[tuple[bytes, bytes, bytes | None]]:
        """Type, data and id of the events that are complete now."""
        whole = self._frames.feed(self._normalize(chunk))
        if self._first and whole:
            self._first = False
            whole = whole.removeprefix(b"\xef\xbb\xbf")
        self.skipped += self._frames.skipped
        self._frames.skipped = 0
        return [event for block in whole.split(b"\n\n") if (event := self._event(block))]

    def _normalize(self, chunk: bytes) -> bytes:
        """The chunk with \\n for every line end."""
        is_second_half = self._after_return and chunk.startswith(b"\n")
        self._after_return = chunk.endswith(b"\r")
        if is_second_half:
            chunk = chunk[1:]
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return chunk

    def _event(self, block: bytes) -> tuple[bytes, bytes, bytes | None] | None:
        type_, data = b"message", []
        for line in block.split(b"\n"):
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                data.append(value)
            elif name == b"id":
                # An id that cannot be sent as a header is useless as a bookmark.
                if not value or _SENDABLE.fullmatch(value):
                    self.last_id = value
            elif name == b"event":
                type_ = value or type_
            elif name == b"retry" and value.isdigit() and len(value) < 10:
                self.retry = int(value)
        return (type_, b"\n".join(data), self.last_id) if data else None
