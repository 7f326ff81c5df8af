"""Batches events for the output, and tracks which of them are on disk."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from millstream.connectors.interface import ReaderOutput
from millstream.connectors.postgres.bookmark import Bookmark
from millstream.connectors.settings import SourceSettings

CONTENT_TYPE = "application/cloudevents-batch+json"
_MOST_EVENTS = 500
_MOST_BYTES = 256 * 1024
_FRAME = 2  # brackets


class OutputBuffer:
    """Collects events, and offers them as one message with the bookmark after them."""

    def __init__(
        self, output: ReaderOutput, settings: SourceSettings, received: Callable[[int], None]
    ) -> None:
        self.moved = asyncio.Event()  # set when `confirmed` may have advanced
        self.events: list[bytes] = []
        self._output = output
        self._received = received  # counts the events of an offer
        self._most_events = min(settings.max_events, _MOST_EVENTS)
        self._most_bytes = min(settings.max_body - _FRAME, _MOST_BYTES)
        self._bytes = 0
        self._offered: Bookmark | None = None
        self._confirmed = 0
        self._pending: deque[tuple[asyncio.Future[None], int]] = deque()

    @property
    def bookmark(self) -> Bookmark | None:
        """Where to resume: after what was offered, on disk or not yet."""
        return self._offered or Bookmark.read(self._output.bookmark)

    def begin(self, lsn: int, *, new_slot: bool) -> None:
        """Start a new session; everything up to `lsn` was offered.

        `new_slot`: its slot has just been created. LSNs of the old slot mean nothing then; they
        may even come from another server.
        """
        self.events, self._bytes = [], 0
        if new_slot:
            self._pending.clear()
            self._confirmed = lsn
        self.passed(lsn)

    def fits(self, event: bytes) -> bool:
        """Whether `event` fits into the current batch."""
        if not self.events:
            return True  # even if it is large: it cannot be split
        return len(self.events) < self._most_events and self._bytes + len(event) < self._most_bytes

    def add(self, event: bytes) -> None:
        """Add an event, a CloudEvent as JSON, to the current batch."""
        self.events.append(event)
        self._bytes += len(event) + 1

    async def stored(self) -> None:
        """Wait until everything that was offered is on disk."""
        if self._pending:
            await asyncio.shield(self._pending[-1][0])

    async def flush(self, bookmark: Bookmark) -> None:
        """Offer the batch unless it is empty, waiting for room."""
        events, self.events, self._bytes = self.events, [], 0
        if events:
            body = b"[" + b",".join(events) + b"]"
            stored = await self._output.offer(
                body, content_type=CONTENT_TYPE, bookmark=bookmark.write()
            )
            self._offered = bookmark
            self._pending.append((stored, bookmark.lsn))
            stored.add_done_callback(lambda _: self.moved.set())
            self._received(len(events))

    def passed(self, lsn: int) -> None:
        """Note that between the last added event and `lsn` there was nothing to read."""
        if self.events:
            return
        if self._pending:
            stored, before = self._pending.pop()
            self._pending.append((stored, max(before, lsn)))
        else:
            self._confirmed = max(self._confirmed, lsn)

    @property
    def confirmed(self) -> int:
        """The LSN up to which everything is on disk."""
        while self._pending and self._pending[0][0].done():
            self._confirmed = max(self._confirmed, self._pending.popleft()[1])
        return self._confirmed
