"""The collector's durable log: in before it is looked at, kept until Kafka has it."""

from __future__ import annotations

import asyncio
import bisect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

import msgspec

from millstream.collect.journal.damage import DamagedPiece, DamageStore
from millstream.collect.journal.disk import Disk, remedy, why
from millstream.collect.journal.folder import Identity, IdentityFile, Lock
from millstream.collect.journal.reading import EntryLocation, read_places
from millstream.collect.journal.record import HEADER, bookmark_piece
from millstream.collect.journal.recovery import CleanClose, RecoveredState, recover
from millstream.collect.journal.segment import Segment
from millstream.collect.journal.settings import JournalSettings
from millstream.collect.journal.writer import (
    BATCH_BYTES,
    CommittedGroup,
    EntryBatch,
    QueuedEntry,
    RemoveSegment,
    RollSegment,
    Stop,
    Writer,
    WriterState,
)
from millstream.errors import JournalBroken, JournalFull, JournalSmall

OnDurable = Callable[[JournalBroken | None], None]
OnLost = Callable[[list[DamagedPiece]], Awaitable[None]]

_log = logging.getLogger(__name__)


def _do_nothing() -> None:
    pass


class Journal:
    """Belongs to one event loop; a thread of its own writes and syncs. Made by `open`.

    An entry is pending from when it is durable until it is settled. Sequences grow by one with each
    durable entry and never go back; they have a gap only where a damaged end of the last segment
    may have held some.
    """

    def __init__(
        self,
        folder: Path,
        settings: JournalSettings,
        lock: Lock,
        identity: Identity,
        identity_file: IdentityFile,
        found: RecoveredState,
        disk: Disk,
        on_room: Callable[[], object],
    ) -> None:
        self.identity = identity.identity
        self.start = identity.start
        self.recovery = found.report()
        self.max_bytes = settings.max_bytes
        self.pending_entries = self.recovery.entries
        self.pending_bytes = self.recovery.bytes
        self.last_durable = found.last
        self.broken = "no segment is open yet"  # "" while it takes entries
        self.damage = DamageStore(folder / "damaged")
        self._on_room = on_room
        self._remedy = ""
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._lock = lock
        self._disk = disk
        self._bookmarks = dict(found.bookmarks)
        self._segments = found.segments  # the last one is written; before `began`, none is
        self._firsts = [segment.first for segment in found.segments]
        self._used = sum(segment.size for segment in found.segments)
        self._next = found.last + 1
        self._settled = found.settled  # the low-water mark: no entry up to here is pending
        self._advance()
        self._round = 0
        self._outstanding: deque[tuple[OnDurable, int]] = deque()
        self._waiting_bytes = 0
        self._gathered: list[
            QueuedEntry
        ] = []  # in this turn of the loop; the writer has the others
        self._gathered_bytes = 0
        self._did_not_fit = 0  # bytes of the last entry, if there was no room for it
        self._is_rolling = False
        self._tried = asyncio.Event()
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        previous = found.segments[-1] if found.segments else None
        self._writer = Writer(
            folder,
            settings.segment_bytes,
            settings.retry_seconds,
            disk,
            WriterState(
                identity,
                found.last,
                identity.newest,
                previous.number if previous else 0,
                previous.size if previous else 0,
                dict(found.bookmarks),
            ),
            identity_file,
            lambda: self._settled,
            self._call,
            self,
        )

    @classmethod
    async def open(
        cls,
        folder: Path,
        settings: JournalSettings,
        disk: Disk | None = None,
        on_room: Callable[[], object] = _do_nothing,
    ) -> Journal:
        """Open and recover the journal in a folder; HomeInUse if another process has it open.

        `on_room` is called when an entry may fit that did not fit before. A disk that accepts no
        new entries is no error: pending entries can be read and settled, and `broken` says why.
        JournalBroken if the existing files cannot be read.
        """
        disk = disk or Disk()
        try:
            opened = await asyncio.to_thread(_open, folder, disk)
        except OSError as error:
            raise JournalBroken(
                f"cannot open the journal in {folder}: {why(error)}", remedy=remedy(error)
            ) from error
        journal = cls(folder, settings, *opened, disk, on_room)
        journal._writer.thread.start()
        await journal._tried.wait()
        return journal

    @property
    def bookmarks(self) -> Mapping[str, bytes]:
        """The newest durable bookmark of each source."""
        return MappingProxyType(self._bookmarks)

    @property
    def stored_bytes(self) -> int:
        """What the files take, settled entries that share one with others included."""
        return self._used

    @property
    def is_full(self) -> bool:
        """Whether the last entry that somebody wished to append would not fit now either."""
        return self._did_not_fit > 0 and not self._fits(self._did_not_fit)

    def append(
        self, payload: bytes, bookmark: tuple[str, bytes] | None = None
    ) -> tuple[int, asyncio.Future[None]]:
        """Take an entry in: its sequence, and a future that is done when it is on disk.

        Never blocks. JournalError: nothing was taken. If the future fails (with JournalBroken), the
        entry is not in the journal, and its sequence is given to another one. A bookmark becomes
        durable with its entry.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        return self.append_with_callback(payload, partial(_resolve, future), bookmark), future

    def append_with_callback(
        self, payload: bytes, durable: OnDurable, bookmark: tuple[str, bytes] | None = None
    ) -> int:
        """As `append`, without a future's cost: `durable` is called in the loop, in their order.

        With None when the entry is on disk, else with the error. It must not raise.
        """
        if self.broken:
            raise self._broken_error()
        size = HEADER + len(payload)
        if bookmark is not None:
            size += len(bookmark_piece(*bookmark))
        self._check_room(size)
        self._did_not_fit = 0
        sequence = self._next
        self._next += 1
        self._outstanding.append((durable, size))
        self._waiting_bytes += size
        if not self._gathered:
            self._loop.call_soon(self._hand_over)
        self._gathered.append(QueuedEntry(sequence, payload, bookmark))
        self._gathered_bytes += size
        if self._gathered_bytes >= BATCH_BYTES:
            self._hand_over()
        return sequence

    def settle(self, *sequences: int) -> None:
        """Everything in these entries is in Kafka or in the failed store. Again is no error."""
        swept = advanced = False
        for sequence in sequences:
            if sequence > self.last_durable:
                raise ValueError(f"entry {sequence} is not durable yet: it cannot be settled")
            segment = self._segment_of(sequence)
            if segment is None or (length := segment.settle(sequence)) < 0:
                continue
            self.pending_entries -= 1
            self.pending_bytes -= length
            advanced = advanced or sequence == self._settled + 1
            swept = swept or not (segment.unsettled or segment is self._segments[-1])
        if advanced:
            self._advance()
        if swept:
            self._sweep()
        self._on_room()

    async def read(
        self, after: int, most_bytes: int, on_lost: OnLost | None = None
    ) -> list[tuple[int, bytes]]:
        """Pending entries after sequence `after`, in order: about `most_bytes`, at least one.

        JournalBroken if the disk cannot be read. Damaged entries are set aside, passed to
        `on_lost`, and then settled: they are not in the list.
        """
        while True:
            places = self._places(after, most_bytes)
            if not places:
                return []
            try:
                entries, damaged = await asyncio.to_thread(read_places, places, self._disk)
            except OSError as error:
                raise JournalBroken(
                    f"cannot read the journal at sequence {places[0].sequence}: {why(error)}",
                    remedy=remedy(error),
                ) from error
            if damaged:
                if on_lost is not None:
                    await on_lost(damaged)
                self.settle(*(each.first for each in damaged))
            if entries:
                return entries
            after = places[-1].sequence

    async def close(self) -> None:
        """Write and sync what is waiting, then end the thread and release the folder."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)  # whoever waits may be cancelled; half closed is worse

    async def _close(self) -> None:
        self._closed = True
        self.broken = self.broken or "it is closed"
        self._hand_over()
        self._writer.queue.put(Stop())
        await asyncio.to_thread(self._writer.thread.join)
        await asyncio.sleep(0)  # the thread's last calls are in the loop's queue before this
        self._fail_outstanding()
        self._lock.release()

    # -- called in the loop, by the writer

    def began(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._firsts.append(segment.first)
        self._used += segment.size
        self._is_rolling = False
        if self.broken and not self._closed:
            if self._tried.is_set():
                _log.warning("journal: takes entries again, in %s", segment.path.name)
            self.broken = ""
        self._tried.set()
        self._sweep()
        self._on_room()

    def committed(self, group: CommittedGroup) -> None:
        segment = group.segment
        segment.offsets.extend(group.offsets)
        segment.lengths.extend(group.lengths)
        count = len(group.offsets)
        segment.settled.extend(bytes(count))
        segment.unsettled += count
        self._used += group.size - segment.size
        segment.size = group.size
        self.last_durable += count
        self.pending_entries += count
        self.pending_bytes += sum(group.lengths)
        self._bookmarks.update(group.bookmarks)
        done = [self._outstanding.popleft() for _ in range(count)]
        self._waiting_bytes -= sum(size for _, size in done)
        _tell([durable for durable, _ in done], None)
        self._on_room()

    def broke(self, reason: str, remedy: str) -> None:
        if not self.broken or not self._tried.is_set():
            _log.error("journal: %s; %s; nothing is taken in until it works again", reason, remedy)
        self.broken, self._remedy = reason, remedy
        self._is_rolling = False
        self._round += 1
        self._next = self.last_durable + 1
        self._fail_outstanding()
        self._tried.set()

    def removed(self, segment: Segment) -> None:
        self._used -= segment.size
        self._on_room()

    # -- inside

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        """From the writer's thread: one wake-up of the loop for a whole group."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _hand_over(self) -> None:
        if self._gathered:
            group = EntryBatch(self._round, self._gathered, self._gathered_bytes)
            self._gathered, self._gathered_bytes = [], 0
            self._writer.queue.put(group)

    def _broken_error(self) -> JournalBroken:
        return JournalBroken(self.broken, remedy=self._remedy)

    def _fail_outstanding(self) -> None:
        failed, self._outstanding = self._outstanding, deque()
        self._gathered, self._gathered_bytes = [], 0
        self._waiting_bytes = 0
        _tell([durable for durable, _ in failed], self._broken_error())

    def _check_room(self, size: int) -> None:
        if size > self.max_bytes:  # to wait for room would be to wait for ever
            raise JournalSmall(
                f"the journal cannot hold {size:,} bytes: it may have {self.max_bytes:,} in all",
                remedy="send less at once, or raise journal.max_bytes",
            )
        if not self._fits(size):
            self._did_not_fit = size
            self._make_room()
            used = self._used + self._waiting_bytes
            raise JournalFull(
                f"the journal is full: {used:,} of {self.max_bytes:,} bytes are taken, "
                f"{self.pending_entries:,} entries wait for Kafka, and this one has {size:,} bytes",
                remedy="wait until Kafka has taken some, or raise journal.max_bytes",
            )
        most = self._settings.max_waiting_bytes
        if self._waiting_bytes and self._waiting_bytes + size > most:
            raise JournalFull(
                f"the disk is slow: {self._waiting_bytes:,} of {most:,} bytes wait for it",
                remedy="try again in a moment, or raise journal.max_waiting_bytes",
            )

    def _fits(self, size: int) -> bool:
        return self._used + self._waiting_bytes + size <= self.max_bytes

    def _make_room(self) -> None:
        """The segment that is written can hold all that there is: nothing else would end it."""
        last = self._segments[-1]
        if last.settled and not last.unsettled and not self._is_rolling:
            self._is_rolling = True
            self._writer.queue.put(RollSegment())

    def _segment_of(self, sequence: int) -> Segment | None:
        place = bisect.bisect_right(self._firsts, sequence) - 1
        if place < 0 or sequence >= self._segments[place].after:
            return None
        return self._segments[place]

    def _advance(self) -> None:
        """Move the low-water mark up to the entry before the first unsettled one."""
        for segment in self._segments:
            if segment.unsettled:
                self._settled = segment.next_unsettled(self._settled + 1) - 1
                return
        self._settled = self.last_durable

    def _sweep(self) -> None:
        """Have the segments removed in which everything is settled.

        The one behind a segment with a void end stays as long as that one: its name says that the
        end is void.
        """
        kept: list[Segment] = []
        for segment in self._segments[:-1]:
            if segment.unsettled or (kept and kept[-1].void):
                kept.append(segment)
            else:
                self._writer.queue.put(RemoveSegment(segment))
        self._segments = [*kept, *self._segments[-1:]]
        self._firsts = [segment.first for segment in self._segments]

    def _places(self, after: int, most_bytes: int) -> list[EntryLocation]:
        places: list[EntryLocation] = []
        size, sequence = 0, after + 1
        start = max(0, bisect.bisect_right(self._firsts, sequence) - 1)
        for segment in self._segments[start:]:
            while (sequence := segment.next_unsettled(sequence)) >= 0:
                length = segment.lengths[sequence - segment.first]
                if places and size + length > most_bytes:
                    return places
                offset = segment.offsets[sequence - segment.first]
                places.append(EntryLocation(segment, sequence, offset, length))
                size += length
                sequence += 1
        return places


def _tell(waiting: Iterable[OnDurable], error: JournalBroken | None) -> None:
    for durable in waiting:
        try:
            durable(error)
        except Exception:  # a bug there must not keep the others from being told
            _log.exception("journal: whoever waited for an entry failed")


def _resolve(future: asyncio.Future[None], error: JournalBroken | None) -> None:
    if future.done():  # given up by whoever waited
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _open(folder: Path, disk: Disk) -> tuple[Lock, Identity, IdentityFile, RecoveredState]:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = Lock(folder)
    try:
        file = IdentityFile(folder / "identity")
        known = file.read()
        closed = CleanClose()
        if known is not None and known.closed_bytes:
            closed = CleanClose(known.newest, known.closed_bytes, known.closed_last)
        found = recover(folder, disk, closed)
        if known is None:
            known = Identity(found.identity, found.start) if found.identity else Identity.new()
        newest = found.segments[-1].number if found.segments else 0
        if newest < known.newest or not found.segments:
            # Somebody has deleted it. What it gave out must not be given out again: Kafka may have
            # it, and recovery would take the new for the old.
            found.last = max(found.last, known.reserved)
        if not found.segments:
            found.settled = found.last
        identity = msgspec.structs.replace(
            known,
            start=max(known.start, found.start) + 1,
            newest=max(newest, known.newest),
            closed_bytes=0,
            closed_last=0,
        )
        file.write(identity)
        disk.sync_folder(folder)
    except BaseException:
        lock.release()
        raise
    return lock, identity, file, found
