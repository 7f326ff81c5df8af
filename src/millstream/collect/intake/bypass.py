"""What goes past the journal: straight to Kafka, or into the failed store."""

from __future__ import annotations

import asyncio

from millstream.collect.arrival import Arrival
from millstream.collect.capacity.shedding import shed
from millstream.collect.capacity.wait_queue import Overloaded
from millstream.collect.formats.unpacked import Unpacked
from millstream.collect.intake.entry import Entry
from millstream.collect.intake.forward import Forwarder
from millstream.collect.intake.lane import Lane, unpack_aside
from millstream.runtime.measure import Clock


class Bypass:
    """Belongs to one intake. What it takes is in memory only: lost if the collector dies."""

    def __init__(
        self, collector: str, forwarder: Forwarder, one_by_one: asyncio.Lock, clock: Clock
    ) -> None:
        """`collector` is in its events' ids: they have numbers of their own.

        `one_by_one` is for whoever works on a large body.
        """
        self._collector = collector
        self._forwarder = forwarder
        self._one_by_one = one_by_one
        self._clock = clock
        self._sequence = 0

    def take(self, lane: Lane, arrival: Arrival) -> Entry:
        """Hand an arrival to Kafka; Overloaded, with nothing taken."""
        self._check_room()
        entry = self._fill(lane, arrival, lane.unpack(arrival))
        entry.check(0, entry.size)
        self._send(entry)
        return entry

    async def take_large(self, lane: Lane, arrival: Arrival) -> Entry:
        """As `take`, without keeping the loop for long."""
        async with self._one_by_one:
            await asyncio.sleep(0)  # others, and Kafka, have a turn
            self._check_room()
            entry = self._fill(lane, arrival, await unpack_aside(lane, arrival))
            await entry.check_in_turns()
            self._send(entry)  # from here on it must not be cancelled
        return entry

    async def set_aside(self, lane: Lane, arrival: Arrival, reason: str) -> int:
        """Put a source's message that no journal can hold into the failed store; how many events.

        Durable when it returns. If we are killed before the source's bookmark is on disk too, the
        message comes again, and is there twice.
        """
        entry = self._entry(lane, arrival)
        entry.fill(await unpack_aside(lane, arrival))
        await entry.check_in_turns()
        self._number(entry)
        # The stream's time must not move with it: what waits in the journal would come late.
        entry.times = [None] * entry.size
        await self._forwarder.set_aside(entry, reason)
        return entry.size

    def _check_room(self) -> None:
        forwarder = self._forwarder
        if forwarder.is_full:
            raise Overloaded(
                f"cannot take in more events: {forwarder.pending_events} of "
                f"{forwarder.pending_bytes} bytes wait for Kafka already"
            )

    def _fill(self, lane: Lane, arrival: Arrival, unpacked: Unpacked) -> Entry:
        if lane.shedder is not None:
            arrival = shed(lane.shedder, arrival, unpacked, self._forwarder.level)
        entry = self._entry(lane, arrival)
        entry.fill(unpacked)
        return entry

    def _entry(self, lane: Lane, arrival: Arrival) -> Entry:
        return Entry(lane, arrival, self._collector, 0, self._clock())

    def _number(self, entry: Entry) -> None:
        self._sequence += 1
        entry.sequence = self._sequence
        entry.accept()

    def _send(self, entry: Entry) -> None:
        self._number(entry)
        if entry.size:
            self._forwarder.send_past(entry)
