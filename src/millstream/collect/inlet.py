"""A stream's way in for a source: no sender waits for an answer, so nothing may be given up."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping

from millstream.collect.body import Form, split
from millstream.collect.intake import Batch, Intake, Overloaded
from millstream.collect.lane import Lane
from millstream.log.producer import Producer

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0

_logger = logging.getLogger(__name__)


class StreamInlet:
    """Takes a source's messages in, and sends again what Kafka did not confirm."""

    def __init__(self, intake: Intake, producer: Producer, lane: Lane, source: str) -> None:
        self._intake = intake
        self._producer = producer
        self._lane = lane
        self._source = source
        self._unconfirmed: list[bytes] = []
        self._resending: asyncio.Task[None] | None = None

    @property
    def bookmark(self) -> bytes | None:
        return None

    async def offer(
        self,
        message: bytes,
        *,
        content_type: str = "application/json",
        attributes: Mapping[str, str] | None = None,
        bookmark: bytes | None = None,
    ) -> asyncio.Future[None]:
        """Take over a message's events. See `Inlet.offer`."""
        if self._resending is not None:
            # What failed goes first, and nothing is read while Kafka is away.
            await asyncio.shield(self._resending)
        events = split(message, Form.SNIFF)
        if events:
            try:
                batch = await self._take(events)
            except asyncio.CancelledError:
                self._keep(events)  # the collector stops, but it has read them
                raise
            batch.outcome.add_done_callback(lambda _: self._confirm(batch, events))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def close(self, seconds: float) -> int:
        """Send what is left, for so long; the number of events that Kafka never confirmed."""
        if self._resending is not None:
            resending = self._resending
            await asyncio.wait([resending], timeout=seconds)
            resending.cancel()
        return len(self._unconfirmed)

    async def _take(self, events: list[bytes]) -> Batch:
        while True:
            await self._intake.room()
            try:
                return await self._intake.take(
                    self._lane, events, source=self._source, producer=self._producer
                )
            except Overloaded:
                # One message can be larger than the room that is left.
                await asyncio.sleep(_FIRST_PAUSE)

    def _confirm(self, batch: Batch, events: list[bytes]) -> None:
        if failed := [events[index] for index in batch.unconfirmed()]:
            _logger.warning(
                "Kafka did not confirm %d events of %s; sending them again",
                len(failed),
                self._source,
            )
            self._keep(failed)

    def _keep(self, events: list[bytes]) -> None:
        self._unconfirmed += events
        if self._resending is None:
            self._resending = asyncio.create_task(self._resend())

    async def _resend(self) -> None:
        pause = _FIRST_PAUSE
        while self._unconfirmed:
            await asyncio.sleep(random.uniform(0, pause))
            pause = min(pause * 2, _LONGEST_PAUSE)
            events = list(self._unconfirmed)
            batch = await self._take(events)
            await asyncio.shield(batch.outcome)
            # Others may have failed meanwhile: they were appended behind these.
            rest = [events[index] for index in batch.unconfirmed()]
            self._unconfirmed[: len(events)] = rest
        self._resending = None
