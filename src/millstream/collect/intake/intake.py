"""From bytes to the log: onto the disk first, then unpacked, checked, and on to Kafka.

Every arrival becomes one entry of the journal; its events go to one of two topics, the stream's
or its rejected one. An event's number is its entry's sequence and its place in the entry, so that
unpacking the same entry again, after a crash, gives the same numbers.

Where some events may be left out (a retry of what is there, or too much under pressure), they are
looked at first, and what was decided is on disk with them: it is never decided again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import msgspec

from millstream.collect.arrival import Arrival, UnreadableArrival, decode, encode, is_small
from millstream.collect.capacity.pressure import Pressure
from millstream.collect.capacity.shedding import shed
from millstream.collect.dedup.dedup import Dedup, First
from millstream.collect.dedup.id_writer import done
from millstream.collect.formats.unpacked import BodyRefused, Limits, Unpacked
from millstream.collect.intake.bypass import Bypass
from millstream.collect.intake.damage import explained
from millstream.collect.intake.duplicates import Repeats, carries_ids, repeat_of
from millstream.collect.intake.entry import SMALL_BATCH, Entry
from millstream.collect.intake.failed import FailedStore
from millstream.collect.intake.forward import Forwarder
from millstream.collect.intake.lane import Lane, unpack_aside
from millstream.collect.intake.recent import Recent
from millstream.collect.journal import Damaged, DamageStore, Journal
from millstream.collect.settings import CollectSettings
from millstream.errors import JournalBroken, JournalFull
from millstream.log.producing.batch_producer import BatchProducer
from millstream.log.producing.producer import RecordMetadata
from millstream.log.topic_names import stream_topic
from millstream.pipeline.app import App
from millstream.runtime.measure import Clock

Ack = Literal["log", "local", "none"]

Then = Callable[[Entry, Exception | None], None]

_SWEEP_SECONDS = 0.1
_READ_BYTES = 16 << 20
_NONE: frozenset[int] = frozenset()


class Intake:
    """Where all events of one collector go in. Belongs to one event loop."""

    def __init__(
        self,
        app: App,
        settings: CollectSettings,
        journal: Journal,
        producer: BatchProducer,
        failed: FailedStore,
        dedup: Dedup,
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
        journal.lost = self._count_lost
        self.collector = journal.identity
        self.recent = Recent()
        self.forwarder = Forwarder(
            journal, producer, failed, settings, self._restore, self.recent, clock
        )
        self.pressure = Pressure(journal, self.forwarder.drained)
        self.dedup = dedup
        self._repeats = Repeats(dedup, journal.identity)
        self._app = app
        self._settings = settings
        self._failed = failed
        self._clock = clock
        self._wall = wall
        self._loop = asyncio.get_running_loop()
        self._last_received = 0
        self._left_over = journal.last_durable  # entries up to here are from an earlier start
        self._waiting: dict[Entry, None] = {}  # for the log, in the order in which they came
        self.unpacking_bytes = 0  # of large bodies that go to the disk, or are there
        self._unpacking: set[asyncio.Task[None]] = set()
        # Whose large body is unpacked and checked: were it many at once, a turn of the loop would
        # be as long as a slice of each, and it takes some turns until Kafka has the next batch.
        self._one_by_one = asyncio.Lock()
        past = f"{journal.identity}-{journal.start}"
        self.bypass = Bypass(past, self.forwarder, self._one_by_one, clock)
        self._writing: dict[int, asyncio.Future[None]] = {}  # entries with ids, not on disk yet
        self._unclaimed: set[int] = set()  # entries whose ids Kafka had no room for
        self._taken: dict[int, frozenset[int]] = {}  # by another collector, before this start

    def now(self) -> int:
        """When an arrival came, in milliseconds since the epoch.

        Never less than before: recovery looks into the log from the oldest one's time on.
        """
        moment = self._wall() // 1_000_000
        self._last_received = max(self._last_received, moment)
        return self._last_received

    def take(self, lane: Lane, arrival: Arrival, ack: Ack) -> Entry:
        """Take an arrival in; await `entry.done` for what `ack` says.

        Only if it need not be looked at first, see `looks_first`. JournalFull or JournalBroken,
        with nothing taken. `entry.done` fails with BodyRefused if nothing in the body can be taken
        in, with JournalBroken if it did not get onto the disk.
        """
        entry = Entry(lane, arrival, self.collector, 0, self._clock())
        durable = self._append(entry, None)
        self._expect_answer(entry, ack)
        self._when_journaled(entry, durable)
        return entry

    def take_calling(self, lane: Lane, arrival: Arrival, ack: Ack, then: Then) -> None:
        """As `take`, without a future's cost: `then` is called for what `ack` says.

        With the entry, and the error with which `entry.done` would fail. It must not raise.
        """
        entry = Entry(lane, arrival, self.collector, 0, self._clock())
        entry.sequence = self.journal.append_calling(
            encode(arrival), partial(self._journaled, entry)
        )
        self._hold(entry)
        self.forwarder.expect(entry.sequence)
        entry.then = then
        if ack == "log":
            entry.then = partial(self._no_longer_waiting, then)
            entry.waits_for_log = True
            self._waiting[entry] = None

    def looks_first(self, lane: Lane, arrival: Arrival) -> bool:
        """Whether some of its events may be left out, so that it is looked at before all else."""
        if lane.shedder is not None:
            return lane.shedder.share_kept(self.pressure.level) < 1
        return lane.remembers_ids and carries_ids(arrival)

    async def take_looking(self, lane: Lane, arrival: Arrival, ack: Ack) -> Entry:
        """As `take`, without what is a duplicate or is shed; BodyRefused comes at once.

        If nothing is left, nothing goes to the journal: what it repeats is on disk already.
        """
        async with self._one_by_one:
            entry = self._looked_at(lane, arrival, await unpack_aside(lane, arrival))
            await entry.check_in_turns()
        entry = self._leave_out(entry)
        if entry.remaining:
            durable = self._append_checked(entry, None)
            self._expect_answer(entry, ack)
            durable.add_done_callback(partial(self._journaled_checked, entry))
            return entry
        await self._firsts_on_disk(entry)
        self._count_left_out(entry)
        self._expect_answer(entry, ack)
        entry.resolve()
        return entry

    def take_from_source(
        self, lane: Lane, arrival: Arrival, bookmark: tuple[str, bytes] | None
    ) -> asyncio.Future[None]:
        """Take a source's message in; the future is the journal's. Errors as of `take`."""
        if self.looks_first(lane, arrival):
            return self._take_from_source_looking(lane, arrival, bookmark)
        entry = Entry(lane, arrival, self.collector, 0, self._clock())
        durable = self._append(entry, bookmark)
        self._when_journaled(entry, durable)
        return durable

    def _take_from_source_looking(
        self, lane: Lane, arrival: Arrival, bookmark: tuple[str, bytes] | None
    ) -> asyncio.Future[None]:
        entry = self._looked_at(lane, arrival, lane.unpack(arrival))
        entry.check(0, entry.size)
        entry = self._leave_out(entry)
        if not entry.remaining:
            # What it repeats may be on its way to the disk: this comes behind, so it is not there
            # before. All that is new is how far the source was read.
            if bookmark is None and not self._writing_firsts(entry):
                self._count_left_out(entry)
                return done(self._loop)
            nothing = Arrival(lane.name, arrival.received_at, b"", source=arrival.source)
            passed = Entry(lane, nothing, self.collector, 0, self._clock())
            durable = self._append(passed, bookmark)
            self._when_journaled(passed, durable)
            self._count_left_out(entry)
            return durable
        durable = self._append_checked(entry, bookmark)
        durable.add_done_callback(partial(self._journaled_checked, entry))
        return durable

    async def recognise(self, arrived: Mapping[int, frozenset[int]]) -> None:
        """Before the door opens: know the ids of what an earlier start left in the journal.

        `arrived` are the events, by entry, that are in the log. What another collector has taken in
        since, from a sender that got no answer, is not sent again.
        """
        if not any(lane.remembers_ids for lane in self.lanes.values()):
            return
        after = 0
        while entries := await self.journal.read(after, _READ_BYTES):
            for sequence, payload in entries:
                entry = self._recognisable(sequence, payload)
                if entry is not None:
                    await self._fill(entry)
                    await entry.check_in_turns()
                    taken = await self._repeats.recover(entry, arrived.get(sequence, _NONE))
                    if taken:
                        self._taken[sequence] = taken
            after = entries[-1][0]

    async def _count_lost(self, damaged: list[Damaged]) -> None:
        """Entries could not be read back: their events are no longer pending, but lost."""
        store = self.journal.damage
        for one in damaged:
            known = await asyncio.to_thread(self._explain, store, one)
            held = self.forwarder.give_up(one.first, known.reason)
            if one.first <= self._left_over:
                continue  # this start has not counted it as accepted
            events = known.events or {} if held is None else {held.lane.name: held.remaining}
            for name, count in events.items():
                self.lanes[name].pending -= count
                self.lanes[name].damaged += count

    def _explain(self, store: DamageStore, one: Damaged) -> Damaged:
        known = explained(one, store.data(one), self.lanes)
        store.put(known)
        return known

    def place(self, first: First) -> RecordMetadata | None:
        """Where in the log an event of ours is, if it is there and was so lately."""
        steps = self.recent[first.sequence] if first.collector == self.collector else None
        if steps is None or first.index >= len(steps.deliveries):
            return None
        return steps.deliveries[first.index]

    async def watch(self) -> None:
        """Let no sender wait longer for the log than the settings say; runs as long as the tier."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            overdue = self._clock() - self._settings.ack_timeout
            self._let_go([entry for entry in self._waiting if entry.received <= overdue])

    def let_all_go(self) -> None:
        """Let nobody wait for the log any more: the collector stops, what it has is on disk."""
        self._let_go(list(self._waiting))
        self.forwarder.stop_watching()

    def _let_go(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.counted:  # else it is not even on disk yet, which is the journal's to say
                entry.waits_for_log = False
                self.forwarder.forget(entry)
                entry.resolve()

    def _no_longer_waiting(self, then: Then, entry: Entry, error: Exception | None) -> None:
        self._waiting.pop(entry, None)
        then(entry, error)

    def _expect_answer(self, entry: Entry, ack: Ack) -> None:
        entry.done = self._loop.create_future()
        entry.waits_for_log = ack == "log"
        if entry.waits_for_log:
            self._waiting[entry] = None
            entry.done.add_done_callback(lambda _: self._waiting.pop(entry, None))

    def _looked_at(self, lane: Lane, arrival: Arrival, unpacked: Unpacked) -> Entry:
        """An entry that is not in the journal yet, without what is shed."""
        entry = Entry(lane, arrival, self.collector, 0, self._clock())
        if lane.shedder is not None:
            arrival = shed(lane.shedder, arrival, unpacked, self.pressure.level)
            entry = Entry(lane, arrival, self.collector, 0, entry.received)
        entry.fill(unpacked)
        return entry

    def _leave_out(self, entry: Entry) -> Entry:
        """The entry without what was handed in before."""
        if not entry.lane.remembers_ids:
            return entry
        whole = self._repeats.find(entry)
        return entry if whole is None else repeat_of(whole, entry)

    async def _firsts_on_disk(self, entry: Entry) -> None:
        """Wait until what the entry repeats is on disk; the error if it does not get there."""
        if writing := self._writing_firsts(entry):
            await asyncio.wait(writing)  # which cancels none of them, as awaiting one would
            for durable in writing:
                durable.result()

    def _writing_firsts(self, entry: Entry) -> set[asyncio.Future[None]]:
        return {
            self._writing[first.sequence]
            for first in entry.firsts.values()
            if first.collector == self.collector and first.sequence in self._writing
        }

    def _count_left_out(self, entry: Entry) -> None:
        entry.open = 0
        entry.accept()

    def _append_checked(
        self, entry: Entry, bookmark: tuple[str, bytes] | None
    ) -> asyncio.Future[None]:
        durable = self._append(entry, bookmark)
        if entry.lane.remembers_ids:
            self._writing[entry.sequence] = durable
            self._repeats.reserve(entry)
        return durable

    def _append(self, entry: Entry, bookmark: tuple[str, bytes] | None) -> asyncio.Future[None]:
        if self.unpacking_bytes >= self._settings.max_body_memory:
            raise JournalFull(
                f"cannot take in more now: {self.unpacking_bytes:,} bytes wait to be looked at",
                remedy="send less at once, or raise collect.max_body_memory",
            )
        entry.sequence, durable = self.journal.append(encode(entry.arrival), bookmark)
        self.forwarder.expect(entry.sequence)
        return durable

    def _hold(self, entry: Entry) -> None:
        if not is_small(entry.arrival):
            self.unpacking_bytes += len(entry.arrival.body)

    def _release(self, entry: Entry) -> None:
        if not is_small(entry.arrival):
            self.unpacking_bytes -= len(entry.arrival.body)
            self.journal.freed()

    def _when_journaled(self, entry: Entry, durable: asyncio.Future[None]) -> None:
        self._hold(entry)
        durable.add_done_callback(lambda _: self._journaled(entry, _error_of(durable)))

    def _is_on_disk(self, entry: Entry, error: Exception | None) -> bool:
        if error is not None:
            entry.lane.refused += 1
            self.forwarder.withdraw(entry.sequence)
            entry.resolve(error)
            return False
        self.recent.journaled(entry.sequence, self._wall() // 1_000_000)
        return True

    def _journaled_checked(self, entry: Entry, durable: asyncio.Future[None]) -> None:
        self._writing.pop(entry.sequence, None)
        if not self._is_on_disk(entry, _error_of(durable)):
            self._repeats.release(entry)
        elif not entry.claims or self._repeats.claim(entry):
            self._offer(entry)
        else:
            self._unclaimed.add(entry.sequence)
            self._offer(entry, in_memory=False)

    def _journaled(self, entry: Entry, error: Exception | None) -> None:
        if not self._is_on_disk(entry, error):
            self._release(entry)
        elif is_small(entry.arrival) and self._fill_now(entry) <= SMALL_BATCH:
            entry.check(0, entry.size)
            self._offer(entry)
        else:
            task = self._loop.create_task(self._fill_in_turns(entry))
            self._unpacking.add(task)
            task.add_done_callback(self._unpacking.discard)

    async def _fill_in_turns(self, entry: Entry) -> None:
        try:
            async with self._one_by_one:
                if not entry.size:  # a small one is unpacked already
                    await self._fill(entry)
                await entry.check_in_turns()
                self._offer(entry)
        finally:
            self._release(entry)

    def _offer(self, entry: Entry, *, in_memory: bool = True) -> None:
        entry.accept()
        if entry.size:
            entry.lane.journaled_ms.record((self._clock() - entry.received) * 1000, entry.size)
        if not entry.waits_for_log:
            entry.resolve()
        self.forwarder.offer(entry, in_memory=in_memory)

    def _fill_now(self, entry: Entry) -> int:
        """Unpack a small body; how many events it holds."""
        try:
            unpacked = entry.lane.unpack(entry.arrival)
        except BodyRefused as refused:
            unpacked = Unpacked([])
            entry.resolve(refused)
        entry.fill(unpacked)
        return entry.size

    async def _fill(self, entry: Entry) -> None:
        """Unpack a body, which may be large."""
        try:
            unpacked = await unpack_aside(entry.lane, entry.arrival)
        except BodyRefused as refused:
            unpacked = Unpacked([])
            entry.resolve(refused)
        entry.fill(unpacked)

    def _recognisable(self, sequence: int, payload: bytes) -> Entry | None:
        """The entry, if its events' ids are remembered."""
        try:
            arrival = decode(payload)
        except UnreadableArrival:
            return None
        lane = self.lanes.get(arrival.stream)
        if lane is None or not lane.remembers_ids or not carries_ids(arrival):
            return None
        return Entry(lane, arrival, self.collector, sequence, 0.0)

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
        if taken := self._taken.pop(sequence, None):
            places = tuple(sorted({*arrival.duplicates, *taken}))
            arrival = msgspec.structs.replace(arrival, duplicates=places)
        entry = held or Entry(lane, arrival, self.collector, sequence, 0.0)
        await self._fill(entry)
        await entry.check_in_turns()
        if sequence in self._unclaimed:
            await self._repeats.claim_again(entry)
            self._unclaimed.discard(sequence)
        elif lane.remembers_ids and carries_ids(arrival):
            self._repeats.wait(entry)
        if sequence <= self._left_over:
            entry.accept()
            lane.recovered += entry.size
        entry.counted = True
        return entry

    async def _give_up(self, topic: str, value: bytes, reason: str) -> None:
        now = self.now()
        await asyncio.to_thread(self._failed.put, topic, None, value, [], now, reason)


def _error_of(durable: asyncio.Future[None]) -> Exception | None:
    if durable.cancelled():
        return JournalBroken("nobody waited for the journal any more")
    error = durable.exception()
    return error if error is None or isinstance(error, Exception) else JournalBroken(repr(error))
