"""A stream's way in for a source: no sender waits for an answer, so nothing may be given up."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from millstream.collect.arrival import Arrival
from millstream.collect.capacity.wait_queue import Overloaded
from millstream.collect.intake.intake import Intake
from millstream.collect.intake.lane import Lane
from millstream.errors import JournalError, JournalSmall

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_MOST_WAITING = 8 << 20  # bytes that may wait for the disk before the source is not read on

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Message:
    """One that is not known to be on disk."""

    arrival: Arrival
    bookmark: bytes | None
    stored: asyncio.Future[None]
    is_written: bool = False  # its entry is with the journal
    too_large: JournalSmall | None = None  # for any journal of ours: to wait would be for ever


class SourceIntake:
    """Takes a source's messages into the journal, in order, for as long as it takes."""

    def __init__(
        self,
        intake: Intake,
        lane: Lane,
        name: str,
        address: str,
        handed: bytes | None = None,
    ) -> None:
        """`handed` is the bookmark to go on from as long as the journal has none of that name."""
        self._intake = intake
        self._lane = lane
        self._name = name  # the source's, under which its bookmarks are kept
        self._address = address
        self._handed = handed
        self._skips_journal = lane.stream.delivery == "at_most_once"
        self._waiting: deque[_Message] = deque()  # in the order in which they were offered
        self._waiting_bytes = 0
        self._passed: bytes | None = None  # a bookmark that is on disk already, beyond a retry's
        self._retrying: asyncio.Task[None] | None = None

    @property
    def bookmark(self) -> bytes | None:
        """The newest one on disk."""
        return self._intake.journal.bookmarks.get(self._name, self._handed)

    async def offer(
        self,
        message: bytes,
        *,
        content_type: str = "application/json",
        attributes: Mapping[str, str] | None = None,
        bookmark: bytes | None = None,
    ) -> asyncio.Future[None]:
        """Take over a message. See `ReaderOutput.offer`."""
        arrival = Arrival(
            stream=self._lane.name,
            received_at=self._intake.now(),
            body=message,
            content_type=content_type,
            source=self._address,
            attributes=dict(attributes) if attributes else {},
        )
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._skips_journal and bookmark is None:
            await self._take_past(arrival)
            stored.set_result(None)
            return stored
        await self._room()
        waiting = _Message(arrival, bookmark, stored)
        self._waiting.append(waiting)
        self._waiting_bytes += len(message)
        if self._retrying is None and not self._write(waiting):
            self._retrying = asyncio.create_task(self._retry())
        return stored

    async def close(self, seconds: float) -> int:
        """Let what was offered get onto the disk, for so long; how many messages did not."""
        if self._waiting:
            await asyncio.wait([message.stored for message in self._waiting], timeout=seconds)
        if self._retrying is not None:
            self._retrying.cancel()
        return len(self._waiting)

    async def _room(self) -> None:
        while self._retrying is not None:
            await asyncio.wait([self._retrying])
        while self._waiting_bytes > _MOST_WAITING:
            await asyncio.wait([self._waiting[0].stored])

    async def _take_past(self, arrival: Arrival) -> None:
        while True:
            await self._intake.forwarder.room()
            try:
                self._intake.bypass.take(self._lane, arrival)
                return
            except Overloaded:
                await asyncio.sleep(_FIRST_PAUSE)

    def _write(self, message: _Message) -> bool:
        """Whether the journal has taken the message; if not, nothing of it was taken."""
        bookmark = message.bookmark
        if bookmark is not None and self._passed is not None:
            bookmark = self._passed  # or the next start would read again what is on disk already
        try:
            durable = self._intake.take_from_source(
                self._lane,
                message.arrival,
                None if bookmark is None else (self._name, bookmark),
            )
        except JournalError as error:
            self._lane.refused += 1
            message.too_large = error if isinstance(error, JournalSmall) else None
            return False
        message.is_written = True
        durable.add_done_callback(lambda durable: self._written(message, durable))
        return True

    def _written(self, message: _Message, durable: asyncio.Future[None]) -> None:
        if durable.cancelled() or durable.exception() is not None:
            message.is_written = False
            if self._retrying is None:
                self._retrying = asyncio.create_task(self._retry())
            return
        if self._waiting[0] is message:
            self._waiting.popleft()
        else:  # an earlier one failed: it comes later than this one
            self._waiting.remove(message)
            self._passed = message.bookmark or self._passed
        self._waiting_bytes -= len(message.arrival.body)
        if not message.stored.done():
            message.stored.set_result(None)

    async def _retry(self) -> None:
        pause, said = _FIRST_PAUSE, False
        while any(not message.is_written for message in self._waiting):
            for message in list(self._waiting):
                if not message.is_written and not self._write(message):
                    break
            else:
                await asyncio.wait([message.stored for message in self._waiting], timeout=pause)
                continue
            if message.too_large is not None:
                await self._set_aside(message, message.too_large)
                continue
            if not said:
                said = True
                _log.warning("%s is not read on: the journal has no room or fails", self._name)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        self._passed = None
        self._retrying = None

    async def _set_aside(self, message: _Message, error: JournalSmall) -> None:
        """Leave nothing of a message to be written but how far the source was read."""
        arrival, lane = message.arrival, self._lane
        events = await self._intake.bypass.set_aside(lane, arrival, str(error))
        _log.error(
            "a message of %s for stream %s is too large: %s; its events (%d) are set aside, see "
            "`millstream failed list`",
            self._name,
            lane.name,
            error,
            events,
            extra={"stream": lane.name, "source": self._address},
        )
        message.arrival = Arrival(lane.name, arrival.received_at, b"", source=arrival.source)
        message.too_large = None
        self._waiting_bytes -= len(arrival.body)
