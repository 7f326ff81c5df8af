"""From the journal to Kafka: in the order of sequences, a bounded window at a time, for ever.

An entry comes straight from memory as long as Kafka keeps up. When the window is full, entries stay
on disk only, and are read back from the journal when their turn comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping

from millstream.collect.intake.entry import Entry, Record
from millstream.collect.intake.failed import FailedStore
from millstream.collect.intake.lane import Lane
from millstream.collect.intake.recent import Recent
from millstream.collect.journal import Journal
from millstream.collect.settings import CollectSettings
from millstream.errors import LogError, MillstreamError
from millstream.log.producing.batch_producer import Batch, BatchProducer, RecordRefused
from millstream.log.producing.producer import RecordMetadata
from millstream.runtime.measure import Clock, Rate
from millstream.values.clock import now_ms

_READ_BYTES = 4 << 20  # of the journal, at a time
_PAUSE_SECONDS = 1.0
_EVENTS_PER_TURN = 250  # some milliseconds of work; answers and requests come in between
_NONE: frozenset[int] = frozenset()
_UNBOUNDED = (sys.maxsize, sys.maxsize)  # events and bytes: of what skips the journal

_log = logging.getLogger(__name__)

Restore = Callable[[int, bytes, Entry | None], Awaitable[Entry | None]]


class Forwarder:
    """Hands entries to Kafka and settles them. Belongs to one event loop."""

    def __init__(
        self,
        journal: Journal,
        producer: BatchProducer,
        failed: FailedStore,
        settings: CollectSettings,
        restore: Restore,
        recent: Recent,
        clock: Clock,
    ) -> None:
        self.sent = 0  # no entry up to this one has to be handed over any more
        self.pending_events = 0  # the window: handed to Kafka, not acknowledged
        self.pending_bytes = 0
        self.drained = Rate(clock)  # bytes that left the journal
        self.freed: Callable[[], object] = _nobody  # called when less is under way to Kafka
        self.answered_at = clock()  # when Kafka last answered for events; or our start
        self._journal = journal
        self._producer = producer
        producer.on_result = self._answered
        self._failed = failed
        self._settings = settings
        self._restore = restore
        self._recent = recent
        self._clock = clock
        self._arrived: dict[int, frozenset[int]] = {}
        self._coming: set[int] = set()  # will be offered from memory
        self._ready: dict[int, Entry] = {}  # in memory, waiting for their turn
        self._ready_bytes = 0
        self._restored: deque[Entry] = deque()  # from disk; come before all that is in memory only
        self._restored_bytes = 0
        self._read_to = 0  # what came from disk up to here is sent or restored
        self._waited_for: dict[int, Entry] = {}  # on disk only, but a sender waits for them
        self._current: Entry | None = None  # the next one; some of it may have been handed over
        self._claimed: asyncio.Future[None] | None = None  # what the next one waits for
        self._watched: dict[int, asyncio.Future[None]] = {}  # entries that repeats wait for
        self._is_open = False
        self._is_pumping = False  # in the loop's next turn
        self._finished: list[Entry] = []  # in this turn: all of their events are settled
        self._needs_disk = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._moved = asyncio.Event()  # something was settled; for `drain`
        self._under_way: set[int] = set()  # entries with events that are not settled
        self._storing: set[asyncio.Task[None]] = set()
        self._failure: LogError | None = None

    def open(self, arrived: Mapping[int, frozenset[int]]) -> None:
        """Begin: `arrived` are the events, by entry, that the log has from an earlier start."""
        self._arrived = dict(arrived)
        self._is_open = True
        self._pump()

    async def run(self) -> None:
        """Read back what is on disk only, until cancelled; LogError if the producer has died."""
        while True:
            await self._needs_disk.wait()
            if self._failure is None:
                await self._read_back()
            if self._failure is not None:
                raise self._failure
            self._needs_disk.clear()
            self._pump()
            self._moved.set()

    async def drain(self, seconds: float) -> None:
        """Wait until nothing is under way any more, for so long; the rest is on disk."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while (
                    self.pending_events
                    or self._finished
                    or self._storing
                    or self.sent < self._journal.last_durable
                ):
                    self._moved.clear()
                    await self._moved.wait()
        self._is_open = False

    def is_pending(self, sequence: int) -> bool:
        """Whether an entry of the journal has events that are not settled."""
        return sequence > self.sent or sequence in self._under_way

    def settled(self, sequence: int) -> asyncio.Future[None]:
        """Done when a pending entry is settled, or nobody is to wait. Shared: don't cancel it."""
        if sequence not in self._watched:
            self._watched[sequence] = asyncio.get_running_loop().create_future()
        return self._watched[sequence]

    def stop_watching(self) -> None:
        """Let nobody wait for an entry to be settled any more."""
        while self._watched:
            self._watched.popitem()[1].set_result(None)

    async def room(self) -> None:
        """Wait until less than half of what may be under way to Kafka is."""
        await self._room.wait()

    @property
    def is_full(self) -> bool:
        """Whether as much is under way to Kafka as may be."""
        settings = self._settings
        return (
            self.pending_events >= settings.max_pending_events
            or self.pending_bytes >= settings.max_pending_bytes
        )

    @property
    def level(self) -> float:
        """From 0, nothing is under way to Kafka, to 1, as much as may be."""
        settings = self._settings
        return max(
            self.pending_events / settings.max_pending_events,
            self.pending_bytes / settings.max_pending_bytes,
        )

    def expect(self, sequence: int) -> None:
        """An entry was appended, and will be offered from memory, or withdrawn."""
        self._coming.add(sequence)

    def withdraw(self, sequence: int) -> None:
        """The entry did not get into the journal."""
        self._coming.discard(sequence)
        self._pump_soon()

    def offer(self, entry: Entry, *, in_memory: bool = True) -> None:
        """A journaled entry whose events are checked; it is sent when its turn comes.

        If not `in_memory`, it is read back and restored before.
        """
        sequence = entry.sequence
        self._coming.discard(sequence)
        if sequence <= max(self.sent, self._read_to):  # it was quicker by way of the disk
            return
        is_next = sequence == self.sent + 1 and self._current is None
        size = self.pending_bytes + self._ready_bytes + len(entry.arrival.body)
        if in_memory and (is_next or size <= self._settings.max_pending_bytes):
            self._ready[sequence] = entry
            self._ready_bytes += len(entry.arrival.body)
        else:
            self._leave_on_disk(entry)
        self._pump_soon()

    def send_past(self, entry: Entry) -> None:
        """Hand over, out of turn, an entry that is in no journal; look at `is_full` before."""
        self._hand_over(entry, entry.size)

    def give_up(self, sequence: int, reason: str) -> Entry | None:
        """A damaged entry cannot be sent: answer who waits for it. That entry, if somebody does."""
        entry = self._waited_for.pop(sequence, None)
        if sequence in self._watched:
            self._watched.pop(sequence).set_result(None)
        if entry is not None:
            lost = f"it was taken in, and lost before Kafka had it: {reason}"
            entry.failures = dict.fromkeys(range(entry.size), lost)
            entry.resolve()
        return entry

    def forget(self, entry: Entry) -> None:
        """Its sender waits no longer."""
        self._waited_for.pop(entry.sequence, None)

    def _leave_on_disk(self, entry: Entry) -> None:
        entry.release()
        if entry.waits_for_log:
            self._waited_for[entry.sequence] = entry

    def _pump_soon(self) -> None:
        """Hand over what is ready in the loop's next turn: after the answers of this one."""
        if not self._is_pumping:
            self._is_pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._is_pumping = False
        room = _EVENTS_PER_TURN
        while self._is_open and not self.is_full:
            entry = self._current or self._next()
            if entry is None:
                break
            self._current = entry
            if not self._is_claimed(entry):
                break
            room -= self._hand_over(entry, room)
            if entry.at < entry.size:
                if not room:
                    self._pump_soon()
                break
            self._current = None
            self.sent = entry.sequence

    def _is_claimed(self, entry: Entry) -> bool:
        """Whether its ids are where other collectors see them; if not, it goes on from there."""
        claimed = entry.claimed
        if claimed is None or claimed.done():
            return True
        if claimed is not self._claimed:
            self._claimed = claimed
            claimed.add_done_callback(lambda _: self._pump_soon())
        return False

    def _next(self) -> Entry | None:
        entry = self._next_restored() if self._restored else self._next_in_memory()
        # The next piece is read while this one is sent.
        if self._restored and self._restored_bytes < _READ_BYTES // 2:
            self._read_if_there(self._read_to + 1)
        return entry

    def _next_restored(self) -> Entry:
        entry = self._restored.popleft()
        self._restored_bytes -= len(entry.arrival.body)
        self.sent = entry.sequence - 1  # numbers in between have nothing to send
        return entry

    def _next_in_memory(self) -> Entry | None:
        if self._needs_disk.is_set():
            return None
        self.sent = max(self.sent, self._read_to)
        entry = self._ready.pop(self.sent + 1, None)
        if entry is not None:
            self._ready_bytes -= len(entry.arrival.body)
        else:
            self._read_if_there(self.sent + 1)
        return entry

    def _read_if_there(self, sequence: int) -> None:
        in_memory = sequence in self._coming or sequence in self._ready
        if not in_memory and sequence <= self._journal.last_durable:
            self._needs_disk.set()

    def _hand_over(self, entry: Entry, most: int) -> int:
        """How many events Kafka was given: as many as may be, or less where there is no room."""
        is_journaled = entry.collector == self._journal.identity
        if is_journaled and entry.at == 0:
            self._under_way.add(entry.sequence)
            if self._arrived:
                entry.skip |= self._arrived.pop(entry.sequence, _NONE)
        entry.pass_on()
        first, end = entry.at, min(entry.size, entry.at + most)
        self._give(entry, end, self._journaled_room if is_journaled else _UNBOUNDED)
        if entry.at == entry.size:
            self._all_given(entry)
        return entry.at - first

    @property
    def _journaled_room(self) -> tuple[int, int]:
        settings = self._settings
        return (
            settings.max_pending_events - self.pending_events,
            settings.max_pending_bytes - self.pending_bytes,
        )

    def _give(self, entry: Entry, end: int, room: tuple[int, int]) -> None:
        """Hand an entry's next events over, up to a place, or to where there is no more room."""
        add, skip, (most, most_bytes) = self._producer.add, entry.skip, room
        given = size = 0
        for index in range(entry.at, end):
            if index in skip:
                self._settle(entry, index)
            elif given >= most or size >= most_bytes:
                break
            else:
                size += add(entry, index)
                given += 1
            entry.at = index + 1
        self.pending_events += given
        self.pending_bytes += size
        self._note_room()

    def _all_given(self, entry: Entry) -> None:
        if entry.received:
            waited = (self._clock() - entry.received) * 1000
            entry.lane.sent_ms.record(waited, entry.size)
        if entry.size == 0:
            self._finish(entry)

    def _answered(self, batch: Batch, outcome: int | LogError) -> None:
        """Kafka has a batch, from an offset on; or not."""
        self.answered_at = self._clock()
        self.pending_events -= len(batch.records)
        self.pending_bytes -= batch.size
        if isinstance(outcome, LogError):
            self._not_taken(batch, outcome)
        elif outcome < 0:  # it is there, but where?
            for entry, index in batch.records:
                self._settle(entry, index)
        else:
            topic, partition = batch.topic, batch.partition
            for offset, (entry, index) in enumerate(batch.records, outcome):
                entry.deliveries[index] = RecordMetadata(topic, partition, offset)
                entry.open -= 1
                if not entry.open:
                    self._finish(entry)
        if not self._room.is_set():
            self._note_room()
        self.freed()
        if self._current is not None or self._ready or self.sent < self._journal.last_durable:
            self._pump_soon()

    def _note_room(self) -> None:
        settings = self._settings
        if (
            self.pending_bytes * 2 < settings.max_pending_bytes
            and self.pending_events * 2 < settings.max_pending_events
        ):
            self._room.set()
        else:
            self._room.clear()

    def _not_taken(self, batch: Batch, failure: LogError) -> None:
        if not isinstance(failure, RecordRefused):
            self._failure = LogError(
                f"Kafka's client gave up: {failure}",
                remedy="the collector has to start anew, and then looks for what is in the log",
            )
            self._needs_disk.set()
            return
        for entry, index in batch.records:
            entry.failures[index] = str(failure)
            task = asyncio.get_running_loop().create_task(
                self._store(entry, index, entry.record(index), str(failure))
            )
            self._storing.add(task)
            task.add_done_callback(self._storing.discard)

    async def set_aside(self, entry: Entry, reason: str) -> None:
        """Put all of an entry that no journal can hold into the failed store; durable then."""
        entry.pass_on()
        for index in range(entry.size):
            entry.failures[index] = reason
            await self._keep(entry.record(index), reason)
            self._settle(entry, index)

    async def _store(self, entry: Entry, index: int, record: Record, reason: str) -> None:
        name = await self._keep(record, reason)
        _log.error(
            "Kafka refused an event for good: %s; see `millstream failed show %s`",
            reason,
            name,
            extra={"topic": record.topic, "failed": name},
        )
        self._settle(entry, index)

    async def _keep(self, record: Record, reason: str) -> str:
        """The id in the failed store, once the record is there."""
        while True:
            try:
                return await asyncio.to_thread(
                    self._failed.put,
                    record.topic,
                    record.key,
                    record.value,
                    record.headers,
                    record.timestamp,
                    reason,
                )
            except (OSError, MillstreamError) as error:
                _log.error("cannot keep what failed: %s; trying again", error)
                await asyncio.sleep(_PAUSE_SECONDS)

    def _settle(self, entry: Entry, index: int, delivery: RecordMetadata | None = None) -> None:
        entry.deliveries[index] = delivery
        entry.open -= 1
        if entry.open == 0:
            self._finish(entry)

    def _finish(self, entry: Entry) -> None:
        if not self._finished:
            asyncio.get_running_loop().call_soon(self._finish_all)
        self._finished.append(entry)

    def _finish_all(self) -> None:
        """Settle the entries that are done: together, since most come in groups."""
        finished, self._finished = self._finished, []
        now, wall = self._clock(), now_ms()
        journaled = []
        logged: Counter[Lane] = Counter()
        for entry in finished:
            logged[entry.lane] += self._count(entry, now)
            entry.release()
            if entry.collector == self._journal.identity:
                journaled.append(entry.sequence)
                self._under_way.discard(entry.sequence)
                self._recent.logged(entry.sequence, wall, entry.deliveries)
        for lane, count in logged.items():
            lane.rate.add(count)
        before = self._journal.pending_bytes
        self._journal.settle(*journaled)
        self.drained.add(before - self._journal.pending_bytes)
        for sequence in self._watched.keys() & journaled if self._watched else ():
            self._watched.pop(sequence).set_result(None)
        self._moved.set()
        for entry in finished:
            if entry.waits_for_log:
                entry.resolve()

    def _count(self, entry: Entry, now: float) -> int:
        """How many of its events are in the stream's topic now."""
        lane, size, failed = entry.lane, entry.remaining, len(entry.failures)
        rejected = len(entry.rejections)
        if failed and rejected:
            rejected = sum(index not in entry.failures for index in entry.rejections)
        logged = size - failed - rejected
        lane.pending -= size
        lane.logged += logged
        lane.rejected += rejected
        lane.failed += failed
        if logged and entry.received:
            lane.logged_ms.record((now - entry.received) * 1000, logged)
        return logged

    async def _read_back(self) -> None:
        """Restore what comes next on disk, up to what is still in memory."""
        end = self._journal.last_durable
        after = max(self.sent + (self._current is not None), self._read_to)
        found = await self._journal.read(after, _READ_BYTES)
        if not found:  # nothing that is left there has to be sent
            self._read_to = max(after, end)
        for sequence, payload in found:
            # Numbers that are missing were settled, or never got onto the disk.
            self._read_to = sequence - 1
            if sequence in self._coming or sequence in self._ready:
                return
            entry = await self._restore(sequence, payload, self._waited_for.pop(sequence, None))
            self._read_to = sequence
            if entry is None:  # nothing in it to send
                self._journal.settle(sequence)
                continue
            self._restored.append(entry)
            self._restored_bytes += len(entry.arrival.body)
            self._pump_soon()


def _nobody() -> None:
    """Nobody waits for room."""
