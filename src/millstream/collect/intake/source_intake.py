"""Appends a source's messages to the journal. Nobody sends them again: none may be dropped."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from millstream.collect.capacity.wait_queue import Overloaded
from millstream.collect.intake.intake import Intake
from millstream.collect.intake.stream_intake import StreamIntake
from millstream.collect.raw_message import RawMessage
from millstream.errors import JournalError, JournalSmall

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_MOST_WAITING = 8 << 20  # bytes that may wait for the disk before reading pauses

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Pending:
    """A message that is not known to be on disk."""

    message: RawMessage
    bookmark: bytes | None
    stored: asyncio.Future[None]
    is_appended: bool = False  # the journal has its entry
    too_large: JournalSmall | None = None  # the journal can never hold it


class SourceIntake:
    """Appends a source's messages to the journal, in order, and retries for as long as needed."""

    def __init__(
        self,
        intake: Intake,
        stream: StreamIntake,
        name: str,
        address: str,
        initial_bookmark: bytes | None = None,
    ) -> None:
        """`name` is the journal's name for the source's bookmarks.

        `initial_bookmark` applies as long as the journal has no bookmark of that name.
        """
        self._intake = intake
        self._stream = stream
        self._name = name
        self._address = address
        self._initial_bookmark = initial_bookmark
        self._skips_journal = stream.declaration.delivery == "at_most_once"
        self._pending: deque[_Pending] = deque()  # in the order in which they were offered
        self._pending_bytes = 0
        self._newer_bookmark: bytes | None = None  # already on disk, ahead of a message in retry
        self._retrying: asyncio.Task[None] | None = None

    @property
    def bookmark(self) -> bytes | None:
        """The newest bookmark on disk."""
        return self._intake.journal.bookmarks.get(self._name, self._initial_bookmark)

    async def offer(
        self,
        message: bytes,
        *,
        content_type: str = "application/json",
        attributes: Mapping[str, str] | None = None,
        bookmark: bytes | None = None,
    ) -> asyncio.Future[None]:
        """Accept a message. See `ReaderOutput.offer`."""
        raw = RawMessage(
            stream=self._stream.name,
            received_at=self._intake.now(),
            body=message,
            content_type=content_type,
            source=self._address,
            attributes=dict(attributes) if attributes else {},
        )
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._skips_journal and bookmark is None:
            await self._send_directly(raw)
            stored.set_result(None)
            return stored
        await self._wait_for_room()
        pending = _Pending(raw, bookmark, stored)
        self._pending.append(pending)
        self._pending_bytes += len(message)
        if self._retrying is None and not self._append(pending):
            self._retrying = asyncio.create_task(self._retry())
        return stored

    async def close(self, seconds: float) -> int:
        """Wait up to `seconds` for pending messages; how many did not get to disk."""
        if self._pending:
            await asyncio.wait([each.stored for each in self._pending], timeout=seconds)
        if self._retrying is not None:
            self._retrying.cancel()
        return len(self._pending)

    async def _wait_for_room(self) -> None:
        while self._retrying is not None:
            await asyncio.wait([self._retrying])
        while self._pending_bytes > _MOST_WAITING:
            await asyncio.wait([self._pending[0].stored])

    async def _send_directly(self, message: RawMessage) -> None:
        while True:
            await self._intake.forwarder.wait_for_room()
            try:
                self._intake.direct_sender.send(self._stream, message)
                return
            except Overloaded:
                await asyncio.sleep(_FIRST_PAUSE)

    def _append(self, pending: _Pending) -> bool:
        """Append a message to the journal; False if it was refused, with nothing appended."""
        bookmark = pending.bookmark
        if bookmark is not None and self._newer_bookmark is not None:
            # An older bookmark would make the next start read again what is on disk already.
            bookmark = self._newer_bookmark
        try:
            durable = self._intake.append_from_source(
                self._stream, pending.message, None if bookmark is None else (self._name, bookmark)
            )
        except JournalError as error:
            self._stream.refused += 1
            pending.too_large = error if isinstance(error, JournalSmall) else None
            return False
        pending.is_appended = True
        durable.add_done_callback(lambda durable: self._on_durable(pending, durable))
        return True

    def _on_durable(self, pending: _Pending, durable: asyncio.Future[None]) -> None:
        if durable.cancelled() or durable.exception() is not None:
            pending.is_appended = False
            if self._retrying is None:
                self._retrying = asyncio.create_task(self._retry())
            return
        if self._pending[0] is pending:
            self._pending.popleft()
        else:  # an earlier message failed, and will be appended after this one
            self._pending.remove(pending)
            self._newer_bookmark = pending.bookmark or self._newer_bookmark
        self._pending_bytes -= len(pending.message.body)
        if not pending.stored.done():
            pending.stored.set_result(None)

    async def _retry(self) -> None:
        pause, is_logged = _FIRST_PAUSE, False
        while any(not each.is_appended for each in self._pending):
            for each in list(self._pending):
                if not each.is_appended and not self._append(each):
                    break
            else:
                await asyncio.wait([each.stored for each in self._pending], timeout=pause)
                continue
            if each.too_large is not None:
                await self._set_aside(each, each.too_large)
                continue
            if not is_logged:
                is_logged = True
                _log.warning("paused reading %s: the journal is full or fails", self._name)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        self._newer_bookmark = None
        self._retrying = None

    async def _set_aside(self, pending: _Pending, error: JournalSmall) -> None:
        """Move a message's events to the failed store; only its bookmark is left to append."""
        message, stream = pending.message, self._stream
        events = await self._intake.direct_sender.set_aside(stream, message, str(error))
        _log.error(
            "a message of %s for stream %s is too large: %s; its events (%d) are set aside, see "
            "`millstream failed list`",
            self._name,
            stream.name,
            error,
            events,
            extra={"stream": stream.name, "source": self._address},
        )
        pending.message = RawMessage(stream.name, message.received_at, b"", source=message.source)
        pending.too_large = None
        self._pending_bytes -= len(message.body)
