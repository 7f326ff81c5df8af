"""What a reader has for the output: events in bundles, and what of them is on disk."""

from __future__ import annotations

import asyncio
from collections import deque

from millstream.connectors.interface import ReaderOutput
from millstream.connectors.postgres.bookmark import Bookmark
from millstream.connectors.settings import SourceSettings

CONTENT_TYPE = "application/cloudevents-batch+json"
_MOST_EVENTS = 500
_MOST_BYTES = 256 * 1024
_FRAME = 2  # brackets


class OutputBuffer:
    """Collects events, and offers them as one body with the bookmark that holds after them."""

    def __init__(self, output: ReaderOutput, settings: SourceSettings) -> None:
        self.moved = asyncio.Event()  # set when `confirmed` may have grown
        self.events: list[bytes] = []
        self._output = output
        self._most_events = min(settings.max_events, _MOST_EVENTS)
        self._most_bytes = min(settings.max_body - _FRAME, _MOST_BYTES)
        self._bytes = 0
        self._offered: Bookmark | None = None
        self._confirmed = 0
        self._on_the_way: deque[tuple[asyncio.Future[None], int]] = deque()

    @property
    def bookmark(self) -> Bookmark | None:
        """Where to go on: behind what is on disk, or on the way there."""
        return self._offered or Bookmark.read(self._output.bookmark)

    def begin(self, lsn: int, *, anew: bool) -> None:
        """A new connection begins, up to whose place `lsn` nothing is missing.

        `anew`: it reads from a slot that has just been made. Places of the one before may even be
        those of another server, and say nothing about it.
        """
        self.events, self._bytes = [], 0
        if anew:
            self._on_the_way.clear()
            self._confirmed = lsn
        self.passed(lsn)

    def fits(self, event: bytes) -> bool:
        """Whether `event` may go into the same batcher as those before it."""
        if not self.events:
            return True  # however large: it cannot be made smaller
        return len(self.events) < self._most_events and self._bytes + len(event) < self._most_bytes

    def add(self, event: bytes) -> None:
        """One more, a CloudEvent as JSON, for the next batcher."""
        self.events.append(event)
        self._bytes += len(event) + 1

    async def stored(self) -> None:
        """Return when everything that was offered is on disk."""
        if self._on_the_way:
            await asyncio.shield(self._on_the_way[-1][0])

    async def flush(self, bookmark: Bookmark) -> int:
        """Offer what there is, waiting for room. The number of events; none is no offer."""
        events, self.events, self._bytes = self.events, [], 0
        if events:
            body = b"[" + b",".join(events) + b"]"
            stored = await self._output.offer(
                body, content_type=CONTENT_TYPE, bookmark=bookmark.write()
            )
            self._offered = bookmark
            self._on_the_way.append((stored, bookmark.lsn))
            stored.add_done_callback(lambda _: self.moved.set())
        return len(events)

    def passed(self, lsn: int) -> None:
        """There was nothing for us up to here since the last event that was added."""
        if self.events:
            return
        if self._on_the_way:
            stored, before = self._on_the_way.pop()
            self._on_the_way.append((stored, max(before, lsn)))
        else:
            self._confirmed = max(self._confirmed, lsn)

    @property
    def confirmed(self) -> int:
        """The place in the server's log up to which everything is on disk."""
        while self._on_the_way and self._on_the_way[0][0].done():
            self._confirmed = max(self._confirmed, self._on_the_way.popleft()[1])
        return self._confirmed
