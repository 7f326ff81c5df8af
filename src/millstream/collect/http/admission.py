"""Whether a request's events are taken in now, in a moment, or not at all.

Where there is no room they wait for it: for the window to Kafka those that skip the journal, for
the journal the others, and for memory a body before it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec

from millstream.collect.arrival import Arrival, is_small
from millstream.collect.capacity.body_memory import Bodies
from millstream.collect.capacity.wait_queue import Line
from millstream.collect.intake.entry import Entry
from millstream.collect.intake.intake import Ack, Intake
from millstream.collect.intake.lane import Lane
from millstream.collect.settings import CollectSettings

Take = Callable[[Arrival], None]
Refused = Callable[[Exception], None]


class Admission:
    """Lets requests in, each in its turn. Belongs to one intake, and one event loop."""

    def __init__(self, intake: Intake, settings: CollectSettings) -> None:
        self._intake = intake
        self._for_window = Line(settings.room_timeout)
        self._for_disk = Line(settings.room_timeout)
        self._for_memory = Line(settings.room_timeout)
        self.bodies = Bodies(settings.max_body_memory, settings.max_body, self._for_memory)
        self._later: set[asyncio.Task[None]] = set()
        intake.forwarder.freed = self._for_window.freed
        intake.journal.freed = self._for_disk.freed

    @property
    def waiting(self) -> int:
        """Requests that wait for room."""
        return len(self._for_window) + len(self._for_disk) + len(self._for_memory)

    def is_next(self, ack: Ack) -> bool:
        """Whether nobody waits for what a request needs: it may be taken in at once."""
        return self._line(ack).is_empty

    async def take(self, lane: Lane, arrival: Arrival, ack: Ack) -> Entry:
        """Take an arrival in when there is room for it; then await `entry.done`, if there is one.

        As `Intake.take`; one of NO_ROOM if there is none in time, with nothing taken.
        """
        return await self._line(ack).take(partial(self._take, lane, arrival, ack))

    def take_later(self, ack: Ack, arrival: Arrival, take: Take, refused: Refused) -> None:
        """Have `take` called when there is room for an arrival; `refused`, if it raised at last.

        `take` raises one of NO_ROOM as long as there is none, and has taken nothing then.
        """
        task = asyncio.get_running_loop().create_task(self._take_later(ack, arrival, take, refused))
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    def let_all_go(self) -> None:
        """Let nobody wait any longer: the collector stops."""
        for line in (self._for_window, self._for_disk, self._for_memory):
            line.let_all_go()

    async def _take(self, lane: Lane, arrival: Arrival, ack: Ack) -> Entry:
        intake, arrival = self._intake, self._dated(arrival)
        if ack == "none":
            if is_small(arrival):
                return intake.bypass.take(lane, arrival)
            return await intake.bypass.take_large(lane, arrival)
        if intake.looks_first(lane, arrival):
            return await intake.take_looking(lane, arrival, ack)
        return intake.take(lane, arrival, ack)

    async def _take_later(self, ack: Ack, arrival: Arrival, take: Take, refused: Refused) -> None:
        async def attempt() -> None:
            take(self._dated(arrival))

        try:
            with self.bodies.hold(len(arrival.body)):
                await self._line(ack).wait(attempt)
        except Exception as error:
            refused(error)

    def _dated(self, arrival: Arrival) -> Arrival:
        """The arrival as of now: what has waited was not collected before."""
        now = self._intake.now()
        if arrival.received_at == now:
            return arrival
        return msgspec.structs.replace(arrival, received_at=now)

    def _line(self, ack: Ack) -> Line:
        return self._for_window if ack == "none" else self._for_disk
