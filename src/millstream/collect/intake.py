"""From bytes to the log: onto the disk first, then unpacked, checked, and on to Kafka.

Every arrival becomes one entry of the journal; its events go to one of two topics, the stream's
or its rejected one. An event's number is its entry's sequence and its place in the entry, so that
unpacking the same entry again, after a crash, gives the same numbers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Literal

from millstream.app import App
from millstream.collect.arrival import Arrival, UnreadableArrival, decode, encode
from millstream.collect.entry import Entry
from millstream.collect.failed import FailedStore
from millstream.collect.forward import Forwarder
from millstream.collect.journal import Journal
from millstream.collect.lane import Lane
from millstream.collect.recent import Recent
from millstream.collect.settings import CollectSettings
from millstream.collect.unpacked import BodyRefused, Limits, Unpacked
from millstream.errors import InvalidEvent, JournalError, LogError
from millstream.log.producer import Producer
from millstream.log.topics import stream_topic
from millstream.measure import Clock

Ack = Literal["log", "local", "none"]

_EVENTS_PER_TURN = 500  # some 5 ms of work; a larger batch lets other requests in between
_SMALL = 64 << 10  # bytes of a body that is unpacked at once
_SWEEP_SECONDS = 0.1


class Overloaded(LogError):
    """Too much is under way to Kafka to take in more past the journal."""


class Intake:
    """Where all events of one collector go in. Belongs to one event loop."""

    def __init__(
        self,
        app: App,
        settings: CollectSettings,
        journal: Journal,
        producer: Producer,
        failed: FailedStore,
        clock: Clock = time.monotonic,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        limits = Limits(
            max_body=settings.max_body,
            max_events=settings.max_events,
            max_line=settings.max_line,
            max_depth=settings.max_depth,
        )
        self.lanes = {s.name: Lane(app, s, limits, clock) for s in app.streams.values()}
        self.journal = journal
        self.collector = journal.identity
        self.past_collector = f"{journal.identity}-{journal.start}"  # of what skips the journal
        self.recent = Recent()
        self.forwarder = Forwarder(
            journal, producer, failed, settings, self._restore, self.recent, clock
        )
        self._app = app
        self._settings = settings
        self._failed = failed
        self._clock = clock
        self._wall = wall
        self._loop = asyncio.get_running_loop()
        self._last_received = 0
        self._past_sequence = 0
        self._left_over = journal.last_durable  # entries up to here are from an earlier start
        self._waiting: dict[Entry, None] = {}  # for the log, in the order in which they came
        self._unpacking: set[asyncio.Task[None]] = set()

    def now(self) -> int:
        """When an arrival came, in milliseconds since the epoch.

        Never less than before: recovery looks into the log from the oldest one's time on.
        """
        moment = self._wall() // 1_000_000
        self._last_received = max(self._last_received, moment)
        return self._last_received

    def take(self, lane: Lane, arrival: Arrival, ack: Ack) -> Entry:
        """Take an arrival in; await `entry.done` for what `ack` says.

        JournalFull or JournalBroken, with nothing taken. `entry.done` fails with BodyRefused if
        nothing in the body can be taken in, with JournalBroken if it did not get onto the disk.
        """
        entry = Entry(lane, arrival, self.collector, 0, self._clock())
        entry.done = self._loop.create_future()
        entry.waits_for_log = ack == "log"
        durable = self._append(entry, None)
        durable.add_done_callback(partial(self._journaled, entry))
        if entry.waits_for_log:
            self._waiting[entry] = None
            entry.done.add_done_callback(lambda _: self._waiting.pop(entry, None))
        return entry

    def take_from_source(
        self, lane: Lane, arrival: Arrival, bookmark: tuple[str, bytes] | None
    ) -> asyncio.Future[None]:
        """Take a source's message in; the future is the journal's. Errors as of `take`."""
        entry = Entry(lane, arrival, self.collector, 0, self._clock())
        durable = self._append(entry, bookmark)
        durable.add_done_callback(partial(self._journaled, entry))
        return durable

    def take_past(self, lane: Lane, arrival: Arrival) -> Entry:
        """Hand an arrival to Kafka without the journal; Overloaded, with nothing taken."""
        if self.forwarder.is_full:
            raise Overloaded(
                f"cannot take in more events: {self.forwarder.pending_events} of "
                f"{self.forwarder.pending_bytes} bytes wait for Kafka already"
            )
        unpacked = lane.unpack(
            arrival.body, arrival.content_type, arrival.encoding, arrival.attributes
        )
        self._past_sequence += 1
        entry = Entry(lane, arrival, self.past_collector, self._past_sequence, self._clock())
        entry.fill(unpacked)
        entry.check(0, entry.size)
        self._count(entry)
        if entry.size:
            self.forwarder.send_past(entry)
        return entry

    async def watch(self) -> None:
        """Let no sender wait longer for the log than the settings say; runs as long as the tier."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            overdue = self._clock() - self._settings.ack_timeout
            self._let_go([entry for entry in self._waiting if entry.received <= overdue])

    def let_all_go(self) -> None:
        """Let nobody wait for the log any more: the collector stops, what it has is on disk."""
        self._let_go(list(self._waiting))

    def _let_go(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.counted:  # else it is not even on disk yet, which is the journal's to say
                entry.waits_for_log = False
                self.forwarder.forget(entry)
                entry.resolve()

    def _append(self, entry: Entry, bookmark: tuple[str, bytes] | None) -> asyncio.Future[None]:
        try:
            entry.sequence, durable = self.journal.append(encode(entry.arrival), bookmark)
        except JournalError:
            entry.lane.refused += 1
            raise
        self.forwarder.expect(entry.sequence)
        return durable

    def _journaled(self, entry: Entry, durable: asyncio.Future[None]) -> None:
        error = None if durable.cancelled() else durable.exception()
        if durable.cancelled() or error is not None:
            entry.lane.refused += 1
            self.forwarder.withdraw(entry.sequence)
            entry.resolve(error if isinstance(error, Exception) else None)
            return
        self.recent.journaled(entry.sequence, self._wall() // 1_000_000)
        if len(entry.arrival.body) <= _SMALL and not entry.arrival.encoding:
            self._fill(entry)
            entry.check(0, entry.size)
            self._offer(entry)
        else:
            task = self._loop.create_task(self._fill_in_turns(entry))
            self._unpacking.add(task)
            task.add_done_callback(self._unpacking.discard)

    async def _fill_in_turns(self, entry: Entry) -> None:
        self._fill(entry)
        await self._check_in_turns(entry)
        self._offer(entry)

    async def _check_in_turns(self, entry: Entry) -> None:
        for first in range(0, entry.size, _EVENTS_PER_TURN):
            entry.check(first, min(first + _EVENTS_PER_TURN, entry.size))
            await asyncio.sleep(0)

    def _offer(self, entry: Entry) -> None:
        self._count(entry)
        if entry.size:
            entry.lane.journaled_ms.record((self._clock() - entry.received) * 1000, entry.size)
        if entry.done is not None and not entry.waits_for_log:
            entry.resolve()
        self.forwarder.offer(entry)

    def _count(self, entry: Entry) -> None:
        entry.counted = True
        entry.lane.accepted += entry.size
        entry.lane.pending += entry.size

    def _fill(self, entry: Entry) -> None:
        arrival = entry.arrival
        try:
            unpacked = entry.lane.unpack(
                arrival.body, arrival.content_type, arrival.encoding, arrival.attributes
            )
        except BodyRefused as refused:
            if arrival.source:  # nobody to tell: it is kept where the invalid ones are
                unpacked = Unpacked([arrival.body], None, {0: InvalidEvent(str(refused))})
            else:
                unpacked = Unpacked([])
                entry.resolve(refused)
        entry.fill(unpacked)

    async def _restore(self, sequence: int, payload: bytes, held: Entry | None) -> Entry | None:
        """An entry from disk, ready to be sent; None if there is nothing to send for it."""
        try:
            arrival = decode(payload)
            lane = self.lanes[arrival.stream]
        except UnreadableArrival as error:
            await self._give_up("", payload, str(error))
            return None
        except KeyError:
            topic = stream_topic(self._app.name, arrival.stream)
            why = f"the pipeline has no stream {arrival.stream!r} any more"
            await self._give_up(topic, arrival.body, why)
            return None
        entry = held or Entry(lane, arrival, self.collector, sequence, 0.0)
        self._fill(entry)
        await self._check_in_turns(entry)
        if sequence <= self._left_over:
            self._count(entry)
            lane.recovered += entry.size
        entry.counted = True
        return entry

    async def _give_up(self, topic: str, value: bytes, reason: str) -> None:
        now = self.now()
        await asyncio.to_thread(self._failed.put, topic, None, value, [], now, reason)
