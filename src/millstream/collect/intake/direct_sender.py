"""Sends events to Kafka without the journal, or puts them into the failed store."""

from __future__ import annotations

import asyncio

from millstream.collect.capacity.shedding import shed
from millstream.collect.capacity.wait_queue import Overloaded
from millstream.collect.formats.unpacked import UnpackedBody
from millstream.collect.intake.entry import Entry
from millstream.collect.intake.forward import Forwarder
from millstream.collect.intake.stream_intake import StreamIntake, unpack_in_thread
from millstream.collect.raw_message import RawMessage
from millstream.runtime.measure import Clock


class DirectSender:
    """Belongs to one intake. Its events are only in memory: they are lost if the collector dies."""

    def __init__(
        self, collector: str, forwarder: Forwarder, large_body_lock: asyncio.Lock, clock: Clock
    ) -> None:
        """`collector` is part of the events' ids: they have their own sequence numbers.

        `large_body_lock` is held while a large body is unpacked and checked.
        """
        self._collector = collector
        self._forwarder = forwarder
        self._large_body_lock = large_body_lock
        self._clock = clock
        self._sequence = 0

    def send(self, stream: StreamIntake, message: RawMessage) -> Entry:
        """Send a message's events to Kafka; Overloaded, with nothing sent."""
        self._check_room()
        entry = self._unpacked_entry(stream, message, stream.unpack(message))
        entry.check(0, entry.size)
        self._send(entry)
        return entry

    async def send_large(self, stream: StreamIntake, message: RawMessage) -> Entry:
        """As `send`, without blocking the loop for long."""
        async with self._large_body_lock:
            await asyncio.sleep(0)  # let other tasks and Kafka's client run
            self._check_room()
            unpacked = await unpack_in_thread(stream, message)
            entry = self._unpacked_entry(stream, message, unpacked)
            await entry.check_in_slices()
            self._send(entry)  # from here on it must not be cancelled
        return entry

    async def set_aside(self, stream: StreamIntake, message: RawMessage, reason: str) -> int:
        """Put a message that the journal cannot hold into the failed store; how many events.

        Durable when it returns. If the process is killed before the source's bookmark is on disk
        too, the source delivers the message again, and its events are stored twice.
        """
        entry = self._entry(stream, message)
        entry.set_events(await unpack_in_thread(stream, message))
        await entry.check_in_slices()
        self._number_and_count(entry)
        # Its times must not advance the watermark: entries that wait in the journal would be late.
        entry.times = [None] * entry.size
        await self._forwarder.set_aside(entry, reason)
        return entry.size

    def _check_room(self) -> None:
        forwarder = self._forwarder
        if forwarder.is_full:
            raise Overloaded(
                f"cannot accept more events: {forwarder.pending_events} events of "
                f"{forwarder.pending_bytes} bytes already wait for Kafka"
            )

    def _unpacked_entry(
        self, stream: StreamIntake, message: RawMessage, unpacked: UnpackedBody
    ) -> Entry:
        if stream.shedder is not None:
            message = shed(stream.shedder, message, unpacked, self._forwarder.level)
        entry = self._entry(stream, message)
        entry.set_events(unpacked)
        return entry

    def _entry(self, stream: StreamIntake, message: RawMessage) -> Entry:
        return Entry(stream, message, self._collector, 0, self._clock())

    def _number_and_count(self, entry: Entry) -> None:
        self._sequence += 1
        entry.sequence = self._sequence
        entry.count_accepted()

    def _send(self, entry: Entry) -> None:
        self._number_and_count(entry)
        if entry.size:
            self._forwarder.send_unjournaled(entry)
