"""Reads a stream of server-sent events that someone else serves."""

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
    """Keeps one request open, and goes on after the last event that it handed over."""

    def __init__(self, stream: str, source: SseSource, settings: SourceSettings) -> None:
        super().__init__(stream, source, settings)
        self._types = frozenset(type_.encode() for type_ in source.types)
        self._last_id: bytes | None = None
        self._retry = 0.0  # seconds, as the server said in the stream

    async def read(self, output: ReaderOutput) -> None:
        """Read until the answer ends."""
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
                events = Events(self.settings.max_body, self._last_id)
                async for chunk in read_chunks(response, seconds(self.source.silence)):
                    await self._take(events, chunk, output)
        except UnexpectedStatus as error:
            self.least_pause = max(error.retry_after, self._retry)
            raise

    async def _take(self, events: Events, chunk: bytes, output: ReaderOutput) -> None:
        batcher = Batcher(self.settings)
        for type_, data, last_id in events.feed(chunk):
            if not self._types or type_ in self._types:
                batcher.add(data, bookmark=last_id)
        if events.retry is not None:
            self.least_pause = self._retry = events.retry / 1000
        if skipped := events.skipped + batcher.oversized:
            events.skipped = 0
            self.missed(skipped, "larger than collect.max_body")
        await self.hand_over(output, batcher.drain())
        # Kept in memory too: what was handed over need not come again when the peer is lost, even
        # if it is not on disk yet.
        self._last_id = events.last_id


class Events:
    """The parser that the HTML standard describes, for UTF-8 bytes."""

    def __init__(self, longest: int, last_id: bytes | None) -> None:
        self.last_id = last_id
        self.retry: int | None = None  # milliseconds
        self.skipped = 0
        self._frames = FrameSplitter(b"\n\n", longest)
        self._first = True
        self._after_return = False  # the last byte was \r: a \n that follows belongs to it

    def feed(self, chunk: bytes) -> list[tuple[bytes, bytes, bytes | None]]:
        """Type, data and id of the events that are whole now."""
        whole = self._frames.feed(self._plain(chunk))
        if self._first and whole:
            self._first = False
            whole = whole.removeprefix(b"\xef\xbb\xbf")
        self.skipped += self._frames.skipped
        self._frames.skipped = 0
        return [event for block in whole.split(b"\n\n") if (event := self._event(block))]

    def _plain(self, chunk: bytes) -> bytes:
        """The chunk with a newline for every end of a line."""
        is_rest = self._after_return and chunk.startswith(b"\n")
        self._after_return = chunk.endswith(b"\r")
        if is_rest:
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
                # What could not be sent back as a header is no use as a bookmark.
                if not value or _SENDABLE.fullmatch(value):
                    self.last_id = value
            elif name == b"event":
                type_ = value or type_
            elif name == b"retry" and value.isdigit() and len(value) < 10:
                self.retry = int(value)
        return (type_, b"\n".join(data), self.last_id) if data else None
