"""Sends journal entries to Kafka, in the order of their sequence numbers, within a bounded window.

As long as Kafka keeps up, entries are sent from memory. When the window is full, new entries stay
only on disk, and are read back from the journal when their turn comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping

from millstream.collect.intake.entry import Entry
from millstream.collect.intake.failed import FailedStore
from millstream.collect.intake.recent_entries import RecentEntries
from millstream.collect.intake.stream_intake import StreamIntake
from millstream.collect.journal import Journal
from millstream.collect.settings import CollectSettings
from millstream.errors import LogError, MillstreamError
from millstream.log.producing.batch_producer import (
    Batch,
    BatchProducer,
    Fields,
    OnResult,
    RecordRefused,
)
from millstream.log.producing.producer import RecordMetadata
from millstream.runtime.measure import Clock, Rate
from millstream.values.clock import now_ms

_READ_BYTES = 4 << 20  # of the journal, at a time
_PAUSE_SECONDS = 1.0
_EVENTS_PER_TURN = 250  # some milliseconds of work; then the loop handles requests and answers
_NONE: frozenset[int] = frozenset()
_UNBOUNDED = (sys.maxsize, sys.maxsize)  # events and bytes: for entries that skip the journal

_log = logging.getLogger(__name__)

MakeProducer = Callable[[OnResult], BatchProducer]
Read = Callable[[int, int], Awaitable[list[tuple[int, bytes]]]]
Restore = Callable[[int, bytes, Entry | None], Awaitable[Entry | None]]


class Forwarder:
    """Sends entries to Kafka and settles them in the journal. Belongs to one event loop."""

    def __init__(
        self,
        journal: Journal,
        make_producer: MakeProducer,
        failed: FailedStore,
        settings: CollectSettings,
        *,
        read: Read,
        restore: Restore,
        on_room: Callable[[], object],
        recent: RecentEntries,
        clock: Clock,
    ) -> None:
        """`read` and `restore` get entries back from disk; `on_room` is called after an answer."""
        self.sent = 0  # all entries up to this one were given to the producer
        self.pending_events = 0  # the window: given to the producer, not acknowledged
        self.pending_bytes = 0
        self.drained = Rate(clock)  # bytes that left the journal
        self.answered_at = clock()  # when Kafka last acknowledged events; at first, the start
        self._journal = journal
        self.producer = make_producer(self._on_answer)
        self._failed = failed
        self._settings = settings
        self._read = read
        self._restore = restore
        self._on_room = on_room
        self._recent = recent
        self._clock = clock
        self._already_logged: dict[int, frozenset[int]] = {}  # events, by entry
        self._expected: set[int] = set()  # will be offered from memory
        self._ready: dict[int, Entry] = {}  # in memory, not yet their turn
        self._ready_bytes = 0
        self._restored: deque[Entry] = deque()  # read back from disk; sent before `_ready`
        self._restored_bytes = 0
        self._read_to = 0  # all entries on disk up to here are sent or restored
        self._waited_for: dict[int, Entry] = {}  # only on disk, but a sender waits for them
        self._current: Entry | None = None  # the next entry; partly sent, perhaps
        self._awaited_ids: asyncio.Future[None] | None = None  # the next entry waits for it
        self._settle_futures: dict[int, asyncio.Future[None]] = {}  # by entry
        self._is_open = False
        self._is_pump_scheduled = False  # in the loop's next turn
        self._finished: list[Entry] = []  # in this turn of the loop; `_finish_all` settles them
        self._needs_disk = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._progress = asyncio.Event()  # something was settled or read, for `drain`
        self._under_way: set[int] = set()  # entries with events that are not acknowledged
        self._storing: set[asyncio.Task[None]] = set()
        self._failure: LogError | None = None

    def open(self, already_logged: Mapping[int, frozenset[int]]) -> None:
        """Start to send, without the events, by entry, that an earlier start has sent."""
        self._already_logged = dict(already_logged)
        self._is_open = True
        self._pump()

    async def run(self) -> None:
        """Read entries back from disk until cancelled; LogError if the producer has died."""
        while True:
            await self._needs_disk.wait()
            if self._failure is None:
                await self._read_back()
            if self._failure is not None:
                raise self._failure
            self._needs_disk.clear()
            self._pump()
            self._progress.set()

    async def drain(self, seconds: float) -> None:
        """Wait up to `seconds` until everything is acknowledged; the rest stays on disk."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while (
                    self.pending_events
                    or self._finished
                    or self._storing
                    or self.sent < self._journal.last_durable
                ):
                    self._progress.clear()
                    await self._progress.wait()
        self._is_open = False

    def is_pending(self, sequence: int) -> bool:
        """Whether a journal entry has events that are not settled."""
        return sequence > self.sent or sequence in self._under_way

    def settled(self, sequence: int) -> asyncio.Future[None]:
        """A future that is done when a pending entry is settled. It is shared: don't cancel it."""
        if sequence not in self._settle_futures:
            self._settle_futures[sequence] = asyncio.get_running_loop().create_future()
        return self._settle_futures[sequence]

    def stop_watching(self) -> None:
        """Complete all futures of `settled`: the collector stops."""
        while self._settle_futures:
            self._settle_futures.popitem()[1].set_result(None)

    async def wait_for_room(self) -> None:
        """Wait until less than half of the window is used."""
        await self._room.wait()

    @property
    def is_full(self) -> bool:
        """Whether the window is full."""
        settings = self._settings
        return (
            self.pending_events >= settings.max_pending_events
            or self.pending_bytes >= settings.max_pending_bytes
        )

    @property
    def level(self) -> float:
        """How much of the window is used: 0, nothing, to 1, all."""
        settings = self._settings
        return max(
            self.pending_events / settings.max_pending_events,
            self.pending_bytes / settings.max_pending_bytes,
        )

    def expect(self, sequence: int) -> None:
        """Announce an appended entry: `offer` or `withdraw` follows."""
        self._expected.add(sequence)

    def withdraw(self, sequence: int) -> None:
        """Forget an announced entry: it was not written to the journal."""
        self._expected.discard(sequence)
        self._pump_soon()

    def offer(self, entry: Entry, *, in_memory: bool = True) -> None:
        """Queue a journaled entry with checked events; it is sent when its turn comes.

        If not `in_memory`, it is first read back from disk and restored.
        """
        sequence = entry.sequence
        self._expected.discard(sequence)
        if sequence <= max(self.sent, self._read_to):  # it was read back from disk meanwhile
            return
        is_next = sequence == self.sent + 1 and self._current is None
        size = self.pending_bytes + self._ready_bytes + len(entry.message.body)
        if in_memory and (is_next or size <= self._settings.max_pending_bytes):
            self._ready[sequence] = entry
            self._ready_bytes += len(entry.message.body)
        else:
            self._leave_on_disk(entry)
        self._pump_soon()

    def send_unjournaled(self, entry: Entry) -> None:
        """Send an entry that is not in the journal, at once; check `is_full` before."""
        self._send(entry, entry.size)

    def give_up(self, sequence: int, reason: str) -> Entry | None:
        """Answer the sender of a damaged entry; the entry, if a sender waits for it."""
        entry = self._waited_for.pop(sequence, None)
        if sequence in self._settle_futures:
            self._settle_futures.pop(sequence).set_result(None)
        if entry is not None:
            lost = f"it was accepted, and lost before Kafka had it: {reason}"
            entry.failures = dict.fromkeys(range(entry.size), lost)
            entry.resolve()
        return entry

    def stop_waiting(self, entry: Entry) -> None:
        """The entry's sender no longer waits."""
        self._waited_for.pop(entry.sequence, None)

    def _leave_on_disk(self, entry: Entry) -> None:
        entry.drop_events()
        if entry.waits_for_log:
            self._waited_for[entry.sequence] = entry

    def _pump_soon(self) -> None:
        """Send what is ready in the loop's next turn, after the answers of this turn."""
        if not self._is_pump_scheduled:
            self._is_pump_scheduled = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._is_pump_scheduled = False
        room = _EVENTS_PER_TURN
        while self._is_open and not self.is_full:
            entry = self._current or self._next()
            if entry is None:
                break
            self._current = entry
            if not self._are_ids_written(entry):
                break
            room -= self._send(entry, room)
            if entry.next_index < entry.size:
                if not room:
                    self._pump_soon()
                break
            self._current = None
            self.sent = entry.sequence

    def _are_ids_written(self, entry: Entry) -> bool:
        """Whether other collectors can see its ids; if not, sending resumes when they can."""
        written = entry.ids_written
        if written is None or written.done():
            return True
        if written is not self._awaited_ids:
            self._awaited_ids = written
            written.add_done_callback(lambda _: self._pump_soon())
        return False

    def _next(self) -> Entry | None:
        entry = self._next_restored() if self._restored else self._next_in_memory()
        # Read the next part of the journal while this one is sent.
        if self._restored and self._restored_bytes < _READ_BYTES // 2:
            self._read_if_on_disk(self._read_to + 1)
        return entry

    def _next_restored(self) -> Entry:
        entry = self._restored.popleft()
        self._restored_bytes -= len(entry.message.body)
        self.sent = entry.sequence - 1  # entries in between have nothing to send
        return entry

    def _next_in_memory(self) -> Entry | None:
        if self._needs_disk.is_set():
            return None
        self.sent = max(self.sent, self._read_to)
        entry = self._ready.pop(self.sent + 1, None)
        if entry is not None:
            self._ready_bytes -= len(entry.message.body)
        else:
            self._read_if_on_disk(self.sent + 1)
        return entry

    def _read_if_on_disk(self, sequence: int) -> None:
        in_memory = sequence in self._expected or sequence in self._ready
        if not in_memory and sequence <= self._journal.last_durable:
            self._needs_disk.set()

    def _send(self, entry: Entry, most: int) -> int:
        """Send at most so many events, as far as the window has room; how many."""
        is_journaled = entry.collector == self._journal.identity
        if is_journaled and entry.next_index == 0:
            self._under_way.add(entry.sequence)
            if self._already_logged:
                entry.skip |= self._already_logged.pop(entry.sequence, _NONE)
        entry.prepare_records()
        first, end = entry.next_index, min(entry.size, entry.next_index + most)
        self._produce(entry, end, self._room_in_window if is_journaled else _UNBOUNDED)
        if entry.next_index == entry.size:
            self._on_all_sent(entry)
        return entry.next_index - first

    @property
    def _room_in_window(self) -> tuple[int, int]:
        settings = self._settings
        return (
            settings.max_pending_events - self.pending_events,
            settings.max_pending_bytes - self.pending_bytes,
        )

    def _produce(self, entry: Entry, end: int, room: tuple[int, int]) -> None:
        """Give an entry's next events to the producer, up to `end` or until there is no room."""
        add, skip, (most, most_bytes) = self.producer.add, entry.skip, room
        count = size = 0
        for index in range(entry.next_index, end):
            if index in skip:
                self._settle(entry)
            elif count >= most or size >= most_bytes:
                break
            else:
                size += add(entry, index)
                count += 1
            entry.next_index = index + 1
        self.pending_events += count
        self.pending_bytes += size
        self._update_room()

    def _on_all_sent(self, entry: Entry) -> None:
        if entry.received:
            waited = (self._clock() - entry.received) * 1000
            entry.stream.sent_ms.record(waited, entry.size)
        if entry.size == 0:
            self._finish(entry)

    def _on_answer(self, batch: Batch, outcome: int | LogError) -> None:
        """Settle a batch: `outcome` is the offset of its first record, or the error."""
        self.answered_at = self._clock()
        self.pending_events -= len(batch.records)
        self.pending_bytes -= batch.size
        if isinstance(outcome, LogError):
            self._on_error(batch, outcome)
        elif outcome < 0:  # it is in the log, at an unknown offset
            for entry, _ in batch.records:
                self._settle(entry)
        else:
            topic, partition = batch.topic, batch.partition
            for offset, (entry, index) in enumerate(batch.records, outcome):
                entry.deliveries[index] = RecordMetadata(topic, partition, offset)
                entry.unsettled -= 1
                if not entry.unsettled:
                    self._finish(entry)
        if not self._room.is_set():
            self._update_room()
        self._on_room()
        if self._current is not None or self._ready or self.sent < self._journal.last_durable:
            self._pump_soon()

    def _update_room(self) -> None:
        settings = self._settings
        if (
            self.pending_bytes * 2 < settings.max_pending_bytes
            and self.pending_events * 2 < settings.max_pending_events
        ):
            self._room.set()
        else:
            self._room.clear()

    def _on_error(self, batch: Batch, failure: LogError) -> None:
        if not isinstance(failure, RecordRefused):
            self._failure = LogError(
                f"the Kafka producer failed: {failure}",
                remedy="restart the collector: it then looks for what is in the log already",
            )
            self._needs_disk.set()
            return
        for entry, index in batch.records:
            entry.failures[index] = str(failure)
            task = asyncio.get_running_loop().create_task(
                self._store_refused(entry, entry.fields(index), str(failure))
            )
            self._storing.add(task)
            task.add_done_callback(self._storing.discard)

    async def set_aside(self, entry: Entry, reason: str) -> None:
        """Put all events of an entry into the failed store; durable when it returns."""
        entry.prepare_records()
        for index in range(entry.size):
            entry.failures[index] = reason
            await self._store_failed(entry.fields(index), reason)
            self._settle(entry)

    async def _store_refused(self, entry: Entry, fields: Fields, reason: str) -> None:
        name = await self._store_failed(fields, reason)
        _log.error(
            "Kafka refused an event for good: %s; see `millstream failed show %s`",
            reason,
            name,
            extra={"topic": fields[0], "failed": name},
        )
        self._settle(entry)

    async def _store_failed(self, fields: Fields, reason: str) -> str:
        """Put a record into the failed store, retrying until it is there; its id."""
        topic, value, key, timestamp, headers = fields
        while True:
            try:
                return await asyncio.to_thread(
                    self._failed.put, topic, key, value, headers, timestamp, reason
                )
            except (OSError, MillstreamError) as error:
                _log.error("cannot write to the failed store: %s; trying again", error)
                await asyncio.sleep(_PAUSE_SECONDS)

    def _settle(self, entry: Entry) -> None:
        entry.unsettled -= 1
        if entry.unsettled == 0:
            self._finish(entry)

    def _finish(self, entry: Entry) -> None:
        if not self._finished:
            asyncio.get_running_loop().call_soon(self._finish_all)
        self._finished.append(entry)

    def _finish_all(self) -> None:
        """Settle finished entries together: most finish in groups."""
        finished, self._finished = self._finished, []
        now, wall = self._clock(), now_ms()
        journaled = []
        logged: Counter[StreamIntake] = Counter()
        for entry in finished:
            logged[entry.stream] += self._count(entry, now)
            entry.drop_events()
            if entry.collector == self._journal.identity:
                journaled.append(entry.sequence)
                self._under_way.discard(entry.sequence)
                self._recent.logged(entry.sequence, wall, entry.deliveries)
        for stream, count in logged.items():
            stream.rate.add(count)
        before = self._journal.pending_bytes
        self._journal.settle(*journaled)
        self.drained.add(before - self._journal.pending_bytes)
        for sequence in self._settle_futures.keys() & journaled if self._settle_futures else ():
            self._settle_futures.pop(sequence).set_result(None)
        self._progress.set()
        for entry in finished:
            if entry.waits_for_log:
                entry.resolve()

    def _count(self, entry: Entry, now: float) -> int:
        """Count an entry's outcomes; how many events are in the stream's topic."""
        stream, size, failed = entry.stream, entry.remaining, len(entry.failures)
        rejected = len(entry.rejections)
        if failed and rejected:
            rejected = sum(index not in entry.failures for index in entry.rejections)
        logged = size - failed - rejected
        stream.pending -= size
        stream.logged += logged
        stream.rejected += rejected
        stream.failed += failed
        if logged and entry.received:
            stream.logged_ms.record((now - entry.received) * 1000, logged)
        return logged

    async def _read_back(self) -> None:
        """Restore the next entries on disk, up to the first that is in memory."""
        end = self._journal.last_durable
        after = max(self.sent + (self._current is not None), self._read_to)
        found = await self._read(after, _READ_BYTES)
        if not found:  # nothing on disk is left to send
            self._read_to = max(after, end)
        for sequence, payload in found:
            # Missing sequence numbers were settled, or were never written to disk.
            self._read_to = sequence - 1
            if sequence in self._expected or sequence in self._ready:
                return
            entry = await self._restore(sequence, payload, self._waited_for.pop(sequence, None))
            self._read_to = sequence
            if entry is None:  # it has nothing to send
                self._journal.settle(sequence)
                continue
            self._restored.append(entry)
            self._restored_bytes += len(entry.message.body)
            self._pump_soon()
