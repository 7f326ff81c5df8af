"""Stores received messages in the journal, then unpacks, checks and forwards their events.

Each message becomes one journal entry. Each of its events goes to the stream's topic or to its
rejected topic. An event's identity is its entry's sequence number and its index in the entry, so
unpacking the same entry again after a crash gives the same identities.

Messages with events that may be left out (duplicates, or events shed under pressure) are checked
before they are stored. The decision is stored with the message and never made again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import msgspec

from millstream.collect.capacity.pressure import Pressure
from millstream.collect.capacity.shedding import shed
from millstream.collect.capacity.wait_queue import WaitQueues
from millstream.collect.dedup.dedup import Dedup, Original
from millstream.collect.dedup.id_writer import completed_future
from millstream.collect.formats.unpacked import BodyRefused, Limits, UnpackedBody
from millstream.collect.intake.direct_sender import DirectSender
from millstream.collect.intake.duplicates import Duplicates, carries_ids, mark_all_duplicates
from millstream.collect.intake.entry import SMALL_BATCH, Entry
from millstream.collect.intake.failed import FailedStore
from millstream.collect.intake.forward import Forwarder, MakeProducer
from millstream.collect.intake.lost_events import count_and_store
from millstream.collect.intake.recent_entries import RecentEntries
from millstream.collect.intake.stream_intake import StreamIntake, unpack_in_thread
from millstream.collect.journal import DamagedPiece, Journal
from millstream.collect.raw_message import RawMessage, UnreadableMessage, decode, encode, is_small
from millstream.collect.settings import CollectSettings
from millstream.errors import JournalBroken, JournalFull
from millstream.log.producing.producer import RecordMetadata
from millstream.log.topic_names import stream_topic
from millstream.pipeline.app import App
from millstream.runtime.measure import Clock

Ack = Literal["log", "local", "none"]

OnDone = Callable[[Entry, Exception | None], None]

_SWEEP_SECONDS = 0.1
_READ_BYTES = 16 << 20
_NONE: frozenset[int] = frozenset()


class Intake:
    """Accepts all events of one collector. Belongs to one event loop."""

    def __init__(
        self,
        app: App,
        settings: CollectSettings,
        journal: Journal,
        make_producer: MakeProducer,
        failed: FailedStore,
        dedup: Dedup,
        queues: WaitQueues,
        clock: Clock = time.monotonic,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        limits = Limits(
            max_body=settings.max_body,
            max_events=settings.max_events,
            max_line=settings.max_line,
            max_depth=settings.max_depth,
        )
        self.streams = {s.name: StreamIntake(app, s, limits, clock) for s in app.streams.values()}
        self.journal = journal
        self.collector = journal.identity
        self.recent = RecentEntries()
        self.forwarder = Forwarder(
            journal,
            make_producer,
            failed,
            settings,
            read=self.read_journal,
            restore=self._restore,
            on_room=queues.kafka.notify,
            recent=self.recent,
            clock=clock,
        )
        self.pressure = Pressure(journal, self.forwarder.drained)
        self.dedup = dedup
        self._duplicates = Duplicates(dedup, journal.identity)
        self._app = app
        self._settings = settings
        self._failed = failed
        self._on_journal_room = queues.journal.notify
        self._clock = clock
        self._wall = wall
        self._loop = asyncio.get_running_loop()
        self._last_received = 0
        self._last_recovered = journal.last_durable  # entries up to here are from an earlier start
        self._waiting_for_log: dict[Entry, None] = {}  # in the order in which they came
        self.unpacking_bytes = 0  # of large bodies that are being written or unpacked
        self._unpacking: set[asyncio.Task[None]] = set()
        # Only one large body is unpacked and checked at a time. With many at once, a turn of the
        # loop would take a slice of each, and it takes several turns to send a batch to Kafka.
        self._large_body_lock = asyncio.Lock()
        self.direct_sender = DirectSender(
            f"{journal.identity}-{journal.start}", self.forwarder, self._large_body_lock, clock
        )
        self._writing: dict[int, asyncio.Future[None]] = {}  # entries with ids, not on disk yet
        self._unclaimed: set[int] = set()  # entries whose ids Kafka had no room for
        self._accepted_elsewhere: dict[int, frozenset[int]] = {}  # events of recovered entries

    def now(self) -> int:
        """The time of receipt, in milliseconds since the epoch.

        It never goes back: recovery searches the log from the oldest pending entry's time on.
        """
        moment = self._wall() // 1_000_000
        self._last_received = max(self._last_received, moment)
        return self._last_received

    def append(self, stream: StreamIntake, message: RawMessage, ack: Ack) -> Entry:
        """Append a message to the journal; `entry.done` is done when `ack` is fulfilled.

        Only if not `must_check_first`. JournalFull or JournalBroken: nothing was stored.
        `entry.done` fails with BodyRefused if no event in the body can be read, with JournalBroken
        if the message was not written to disk.
        """
        entry = Entry(stream, message, self.collector, 0, self._clock())
        durable = self._append(entry, None)
        self._expect_answer(entry, ack)
        self._when_journaled(entry, durable)
        return entry

    def append_with_callback(
        self, stream: StreamIntake, message: RawMessage, ack: Ack, on_done: OnDone
    ) -> None:
        """As `append`, without the cost of a future: `on_done` is called when `ack` is fulfilled.

        It gets the entry, and the error with which `entry.done` would fail. It must not raise.
        """
        entry = Entry(stream, message, self.collector, 0, self._clock())
        entry.sequence = self.journal.append_with_callback(
            encode(message), partial(self._on_journaled, entry)
        )
        self._reserve_memory(entry)
        self.forwarder.expect(entry.sequence)
        entry.on_done = on_done
        if ack == "log":
            entry.on_done = partial(self._stop_waiting, on_done)
            entry.waits_for_log = True
            self._waiting_for_log[entry] = None

    def must_check_first(self, stream: StreamIntake, message: RawMessage) -> bool:
        """Whether some events may be left out, so that they are checked before they are stored."""
        if stream.shedder is not None:
            return stream.shedder.share_kept(self.pressure.level) < 1
        return stream.remembers_ids and carries_ids(message)

    async def check_and_append(self, stream: StreamIntake, message: RawMessage, ack: Ack) -> Entry:
        """As `append`, without duplicates and shed events; raises BodyRefused itself.

        If no event is left, nothing is stored: the originals are on disk already.
        """
        async with self._large_body_lock:
            unpacked = await unpack_in_thread(stream, message)
            entry = self._shed_entry(stream, message, unpacked)
            await entry.check_in_slices()
        self._mark_duplicates(entry)
        if entry.remaining:
            durable = self._append_checked(entry, None)
            self._expect_answer(entry, ack)
            durable.add_done_callback(partial(self._on_journaled_checked, entry))
            return entry
        await self._await_originals_on_disk(entry)
        self._count_left_out(entry)
        self._expect_answer(entry, ack)
        entry.resolve()
        return entry

    def append_from_source(
        self, stream: StreamIntake, message: RawMessage, bookmark: tuple[str, bytes] | None
    ) -> asyncio.Future[None]:
        """Append a source's message; the future is done when it is on disk. Errors as `append`."""
        if self.must_check_first(stream, message):
            return self._check_and_append_from_source(stream, message, bookmark)
        entry = Entry(stream, message, self.collector, 0, self._clock())
        durable = self._append(entry, bookmark)
        self._when_journaled(entry, durable)
        return durable

    def _check_and_append_from_source(
        self, stream: StreamIntake, message: RawMessage, bookmark: tuple[str, bytes] | None
    ) -> asyncio.Future[None]:
        entry = self._shed_entry(stream, message, stream.unpack(message))
        entry.check(0, entry.size)
        self._mark_duplicates(entry)
        if entry.remaining:
            durable = self._append_checked(entry, bookmark)
            durable.add_done_callback(partial(self._on_journaled_checked, entry))
            return durable
        if bookmark is None and not self._originals_being_written(entry):
            self._count_left_out(entry)
            return completed_future(self._loop)
        # An empty entry stores the bookmark. It is written after the originals, which may still be
        # on their way to disk.
        nothing = RawMessage(stream.name, message.received_at, b"", source=message.source)
        empty = Entry(stream, nothing, self.collector, 0, self._clock())
        durable = self._append(empty, bookmark)
        self._when_journaled(empty, durable)
        self._count_left_out(entry)
        return durable

    async def read_journal(self, after: int, most_bytes: int) -> list[tuple[int, bytes]]:
        """As `Journal.read`; events of damaged entries are counted as lost."""
        return await self.journal.read(after, most_bytes, self._count_lost)

    async def recover_ids(self, logged: Mapping[int, frozenset[int]]) -> None:
        """Remember the ids of entries that an earlier start left in the journal.

        Must be done before new messages are accepted. `logged` are the events, by entry, that are
        in the log. An event that another collector has accepted since, from a sender that got no
        answer here, is not sent again.
        """
        if not any(stream.remembers_ids for stream in self.streams.values()):
            return
        after = 0
        while entries := await self.read_journal(after, _READ_BYTES):
            for sequence, payload in entries:
                entry = self._entry_with_ids(sequence, payload)
                if entry is not None:
                    await self._unpack(entry)
                    await entry.check_in_slices()
                    taken = await self._duplicates.recover(entry, logged.get(sequence, _NONE))
                    if taken:
                        self._accepted_elsewhere[sequence] = taken
            after = entries[-1][0]

    async def _count_lost(self, damaged: list[DamagedPiece]) -> None:
        """Count the events of entries that could not be read back as lost instead of pending."""
        for piece in damaged:
            store = self.journal.damage
            known = await asyncio.to_thread(count_and_store, store, piece, self.streams)
            waiting = self.forwarder.give_up(piece.first, known.reason)
            if piece.first <= self._last_recovered:
                continue  # this start has not counted it as accepted
            events = known.events or {}
            if waiting is not None:
                events = {waiting.stream.name: waiting.remaining}
            for name, count in events.items():
                self.streams[name].pending -= count
                self.streams[name].damaged += count

    def delivery_of(self, original: Original) -> RecordMetadata | None:
        """Where in the log an event of this collector is; None if it is not there or too old."""
        is_ours = original.collector == self.collector
        steps = self.recent[original.sequence] if is_ours else None
        if steps is None or original.index >= len(steps.deliveries):
            return None
        return steps.deliveries[original.index]

    async def watch(self) -> None:
        """Answer senders that waited for the log longer than `ack_timeout`; runs for ever."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            overdue = self._clock() - self._settings.ack_timeout
            self._release([entry for entry in self._waiting_for_log if entry.received <= overdue])

    def release_waiting(self) -> None:
        """Answer all senders that wait for the log: the collector stops, and all is on disk."""
        self._release(list(self._waiting_for_log))
        self.forwarder.stop_watching()

    def _release(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.is_counted:  # else it is not on disk yet: the journal reports the outcome
                entry.waits_for_log = False
                self.forwarder.stop_waiting(entry)
                entry.resolve()

    def _stop_waiting(self, on_done: OnDone, entry: Entry, error: Exception | None) -> None:
        self._waiting_for_log.pop(entry, None)
        on_done(entry, error)

    def _expect_answer(self, entry: Entry, ack: Ack) -> None:
        entry.done = self._loop.create_future()
        entry.waits_for_log = ack == "log"
        if entry.waits_for_log:
            self._waiting_for_log[entry] = None
            entry.done.add_done_callback(lambda _: self._waiting_for_log.pop(entry, None))

    def _shed_entry(
        self, stream: StreamIntake, message: RawMessage, unpacked: UnpackedBody
    ) -> Entry:
        """An entry that is not in the journal yet, without the events that are shed."""
        received = self._clock()
        if stream.shedder is not None:
            message = shed(stream.shedder, message, unpacked, self.pressure.level)
        entry = Entry(stream, message, self.collector, 0, received)
        entry.set_events(unpacked)
        return entry

    def _mark_duplicates(self, entry: Entry) -> None:
        if entry.stream.remembers_ids:
            original = self._duplicates.find(entry)
            if original is not None:
                mark_all_duplicates(entry, original)

    async def _await_originals_on_disk(self, entry: Entry) -> None:
        """Wait until the originals of the duplicates are on disk; their error if one fails."""
        if writing := self._originals_being_written(entry):
            await asyncio.wait(writing)  # unlike awaiting a future, this never cancels it
            for durable in writing:
                durable.result()

    def _originals_being_written(self, entry: Entry) -> set[asyncio.Future[None]]:
        return {
            self._writing[original.sequence]
            for original in entry.originals.values()
            if original.collector == self.collector and original.sequence in self._writing
        }

    def _count_left_out(self, entry: Entry) -> None:
        entry.unsettled = 0
        entry.count_accepted()

    def _append_checked(
        self, entry: Entry, bookmark: tuple[str, bytes] | None
    ) -> asyncio.Future[None]:
        durable = self._append(entry, bookmark)
        if entry.stream.remembers_ids:
            self._writing[entry.sequence] = durable
            self._duplicates.reserve(entry)
        return durable

    def _append(self, entry: Entry, bookmark: tuple[str, bytes] | None) -> asyncio.Future[None]:
        if self.unpacking_bytes >= self._settings.max_body_memory:
            raise JournalFull(
                f"cannot accept more now: {self.unpacking_bytes:,} bytes wait to be unpacked",
                remedy="send less at once, or raise collect.max_body_memory",
            )
        entry.sequence, durable = self.journal.append(encode(entry.message), bookmark)
        self.forwarder.expect(entry.sequence)
        return durable

    def _reserve_memory(self, entry: Entry) -> None:
        if not is_small(entry.message):
            self.unpacking_bytes += len(entry.message.body)

    def _release_memory(self, entry: Entry) -> None:
        if not is_small(entry.message):
            self.unpacking_bytes -= len(entry.message.body)
            self._on_journal_room()

    def _when_journaled(self, entry: Entry, durable: asyncio.Future[None]) -> None:
        self._reserve_memory(entry)
        durable.add_done_callback(lambda _: self._on_journaled(entry, _error_of(durable)))

    def _is_on_disk(self, entry: Entry, error: Exception | None) -> bool:
        if error is not None:
            entry.stream.refused += 1
            self.forwarder.withdraw(entry.sequence)
            entry.resolve(error)
            return False
        self.recent.journaled(entry.sequence, self._wall() // 1_000_000)
        return True

    def _on_journaled_checked(self, entry: Entry, durable: asyncio.Future[None]) -> None:
        self._writing.pop(entry.sequence, None)
        if not self._is_on_disk(entry, _error_of(durable)):
            self._duplicates.release(entry)
        elif not entry.id_claims or self._duplicates.claim(entry):
            self._offer(entry)
        else:
            self._unclaimed.add(entry.sequence)
            self._offer(entry, in_memory=False)

    def _on_journaled(self, entry: Entry, error: Exception | None) -> None:
        if not self._is_on_disk(entry, error):
            self._release_memory(entry)
        elif is_small(entry.message) and self._unpack_now(entry) <= SMALL_BATCH:
            entry.check(0, entry.size)
            self._offer(entry)
        else:
            task = self._loop.create_task(self._check_and_offer(entry))
            self._unpacking.add(task)
            task.add_done_callback(self._unpacking.discard)

    async def _check_and_offer(self, entry: Entry) -> None:
        try:
            async with self._large_body_lock:
                if not entry.size:  # a small body is unpacked already
                    await self._unpack(entry)
                await entry.check_in_slices()
                self._offer(entry)
        finally:
            self._release_memory(entry)

    def _offer(self, entry: Entry, *, in_memory: bool = True) -> None:
        entry.count_accepted()
        if entry.size:
            entry.stream.journaled_ms.record((self._clock() - entry.received) * 1000, entry.size)
        if not entry.waits_for_log:
            entry.resolve()
        self.forwarder.offer(entry, in_memory=in_memory)

    def _unpack_now(self, entry: Entry) -> int:
        """Unpack a small body; the number of its events."""
        try:
            unpacked = entry.stream.unpack(entry.message)
        except BodyRefused as refused:
            unpacked = UnpackedBody([])
            entry.resolve(refused)
        entry.set_events(unpacked)
        return entry.size

    async def _unpack(self, entry: Entry) -> None:
        """Unpack a body of any size."""
        try:
            unpacked = await unpack_in_thread(entry.stream, entry.message)
        except BodyRefused as refused:
            unpacked = UnpackedBody([])
            entry.resolve(refused)
        entry.set_events(unpacked)

    def _entry_with_ids(self, sequence: int, payload: bytes) -> Entry | None:
        """The entry, if the ids of its events are remembered."""
        try:
            message = decode(payload)
        except UnreadableMessage:
            return None
        stream = self.streams.get(message.stream)
        if stream is None or not stream.remembers_ids or not carries_ids(message):
            return None
        return Entry(stream, message, self.collector, sequence, 0.0)

    async def _restore(self, sequence: int, payload: bytes, waiting: Entry | None) -> Entry | None:
        """An entry from disk, ready to be sent; None if it has nothing to send.

        `waiting` is the entry that a sender still waits for, without its events.
        """
        try:
            message = decode(payload)
            stream = self.streams[message.stream]
        except UnreadableMessage as error:
            await self._store_failed("", payload, str(error))
            return None
        except KeyError:
            topic = stream_topic(self._app.name, message.stream)
            why = f"the pipeline no longer has a stream {message.stream!r}"
            await self._store_failed(topic, message.body, why)
            return None
        if taken := self._accepted_elsewhere.pop(sequence, None):
            duplicates = tuple(sorted({*message.duplicates, *taken}))
            message = msgspec.structs.replace(message, duplicates=duplicates)
        entry = waiting or Entry(stream, message, self.collector, sequence, 0.0)
        await self._unpack(entry)
        await entry.check_in_slices()
        if sequence in self._unclaimed:
            await self._duplicates.claim_again(entry)
            self._unclaimed.discard(sequence)
        elif stream.remembers_ids and carries_ids(message):
            self._duplicates.hold_until_written(entry)
        if sequence <= self._last_recovered:
            entry.count_accepted()
            stream.recovered += entry.size
        entry.is_counted = True
        return entry

    async def _store_failed(self, topic: str, value: bytes, reason: str) -> None:
        await asyncio.to_thread(self._failed.put, topic, None, value, [], self.now(), reason)


def _error_of(durable: asyncio.Future[None]) -> Exception | None:
    if durable.cancelled():
        return JournalBroken("the wait for the journal was cancelled")
    error = durable.exception()
    return error if error is None or isinstance(error, Exception) else JournalBroken(repr(error))
