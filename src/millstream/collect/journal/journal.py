"""The collector's durable log: entries stay on disk until Kafka has their events."""

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
from millstream.collect.journal.reading import EntryLocation, read_entries
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
    """Belongs to one event loop; its own thread writes and syncs. Made by `open`.

    An entry is pending from when it is durable until it is settled. Each durable entry gets the
    next sequence number. Numbers are never reused. They have a gap only where a damaged end of the
    last segment may have held entries.
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
        self.recovery = found.report
        self.max_bytes = settings.max_bytes
        self.pending_entries = self.recovery.entries
        self.pending_bytes = self.recovery.bytes
        self.last_durable = found.last
        self.broken = "no segment is open yet"  # why no entry can be appended; "" if it can
        self.damage = DamageStore(folder / "damaged")
        self._on_room = on_room
        self._remedy = ""
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._lock = lock
        self._disk = disk
        self._bookmarks = dict(found.bookmarks)
        self._segments = found.segments  # after the first `on_segment`, the last one is written
        self._first_sequences = [segment.first for segment in found.segments]
        self._used = sum(segment.size for segment in found.segments)
        self._next = found.last + 1
        self._settled = found.settled  # low-water mark: all entries up to here are settled
        self._advance()
        self._failures = 0
        self._outstanding: deque[tuple[OnDurable, int]] = deque()
        self._waiting_bytes = 0
        self._batch: list[QueuedEntry] = []  # appended in this turn of the loop
        self._batch_bytes = 0
        self._did_not_fit = 0  # size of the last refused entry
        self._is_rolling = False
        self._first_result = asyncio.Event()  # the writer has begun a segment, or failed
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
        await journal._first_result.wait()
        return journal

    @property
    def bookmarks(self) -> Mapping[str, bytes]:
        """The newest durable bookmark of each source."""
        return MappingProxyType(self._bookmarks)

    @property
    def stored_bytes(self) -> int:
        """The size of the files, including settled entries that are not deleted yet."""
        return self._used

    @property
    def is_full(self) -> bool:
        """Whether the last refused entry would still not fit."""
        return self._did_not_fit > 0 and not self._fits(self._did_not_fit)

    def append(
        self, payload: bytes, bookmark: tuple[str, bytes] | None = None
    ) -> tuple[int, asyncio.Future[None]]:
        """Append an entry: its sequence number, and a future that is done when it is on disk.

        Never blocks. JournalError: nothing was appended. If the future fails (with JournalBroken),
        the entry is not in the journal, and another one gets its sequence number. A bookmark
        becomes durable with its entry.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        return self.append_with_callback(payload, partial(_resolve, future), bookmark), future

    def append_with_callback(
        self, payload: bytes, on_durable: OnDurable, bookmark: tuple[str, bytes] | None = None
    ) -> int:
        """As `append`, without the cost of a future: `on_durable` is called in the loop, in order.

        It gets None when the entry is on disk, else the error. It must not raise.
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
        self._outstanding.append((on_durable, size))
        self._waiting_bytes += size
        if not self._batch:
            self._loop.call_soon(self._hand_over)
        self._batch.append(QueuedEntry(sequence, payload, bookmark))
        self._batch_bytes += size
        if self._batch_bytes >= BATCH_BYTES:
            self._hand_over()
        return sequence

    def settle(self, *sequences: int) -> None:
        """Mark entries as settled: Kafka or the failed store has their events. Idempotent."""
        is_segment_settled = advanced = False
        for sequence in sequences:
            if sequence > self.last_durable:
                raise ValueError(f"entry {sequence} is not durable yet: it cannot be settled")
            segment = self._segment_of(sequence)
            if segment is None or (length := segment.settle(sequence)) < 0:
                continue
            self.pending_entries -= 1
            self.pending_bytes -= length
            advanced = advanced or sequence == self._settled + 1
            is_segment_settled = is_segment_settled or not (
                segment.unsettled or segment is self._segments[-1]
            )
        if advanced:
            self._advance()
        if is_segment_settled:
            self._delete_settled()
        self._on_room()

    async def read(
        self, after: int, most_bytes: int, on_lost: OnLost | None = None
    ) -> list[tuple[int, bytes]]:
        """Pending entries after sequence `after`, in order: about `most_bytes`, at least one.

        JournalBroken if the disk cannot be read. Damaged entries are set aside, passed to
        `on_lost`, and then settled: they are not in the list.
        """
        while True:
            locations = self._locate(after, most_bytes)
            if not locations:
                return []
            try:
                entries, damaged = await asyncio.to_thread(read_entries, locations, self._disk)
            except OSError as error:
                raise JournalBroken(
                    f"cannot read the journal at sequence {locations[0].sequence}: {why(error)}",
                    remedy=remedy(error),
                ) from error
            if damaged:
                if on_lost is not None:
                    await on_lost(damaged)
                self.settle(*(each.first for each in damaged))
            if entries:
                return entries
            after = locations[-1].sequence

    async def close(self) -> None:
        """Write and sync waiting entries, end the thread, and unlock the folder."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)  # a cancelled caller must not leave it half closed

    async def _close(self) -> None:
        self._closed = True
        self.broken = self.broken or "it is closed"
        self._hand_over()
        self._writer.queue.put(Stop())
        await asyncio.to_thread(self._writer.thread.join)
        await asyncio.sleep(0)  # let the thread's last calls into the loop run
        self._fail_outstanding()
        self._lock.release()

    # -- called by the writer, in the loop

    def on_segment(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._first_sequences.append(segment.first)
        self._used += segment.size
        self._is_rolling = False
        if self.broken and not self._closed:
            if self._first_result.is_set():
                _log.warning("journal: accepts entries again, in %s", segment.path.name)
            self.broken = ""
        self._first_result.set()
        self._delete_settled()
        self._on_room()

    def on_committed(self, group: CommittedGroup) -> None:
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
        _notify([on_durable for on_durable, _ in done], None)
        self._on_room()

    def on_broken(self, reason: str, remedy: str) -> None:
        if not self.broken or not self._first_result.is_set():
            _log.error("journal: %s; %s; nothing is accepted until it works again", reason, remedy)
        self.broken, self._remedy = reason, remedy
        self._is_rolling = False
        self._failures += 1
        self._next = self.last_durable + 1
        self._fail_outstanding()
        self._first_result.set()

    def on_removed(self, segment: Segment) -> None:
        self._used -= segment.size
        self._on_room()

    # -- internal

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function in the loop, from the writer's thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _hand_over(self) -> None:
        if self._batch:
            group = EntryBatch(self._failures, self._batch, self._batch_bytes)
            self._batch, self._batch_bytes = [], 0
            self._writer.queue.put(group)

    def _broken_error(self) -> JournalBroken:
        return JournalBroken(self.broken, remedy=self._remedy)

    def _fail_outstanding(self) -> None:
        failed, self._outstanding = self._outstanding, deque()
        self._batch, self._batch_bytes = [], 0
        self._waiting_bytes = 0
        _notify([on_durable for on_durable, _ in failed], self._broken_error())

    def _check_room(self, size: int) -> None:
        if size > self.max_bytes:  # waiting for room would not help
            raise JournalSmall(
                f"the journal cannot hold {size:,} bytes: it may have {self.max_bytes:,} in all",
                remedy="send less at once, or raise journal.max_bytes",
            )
        if not self._fits(size):
            self._did_not_fit = size
            self._make_room()
            used = self._used + self._waiting_bytes
            raise JournalFull(
                f"the journal is full: {used:,} of {self.max_bytes:,} bytes are used, "
                f"{self.pending_entries:,} entries wait for Kafka, and this one has {size:,} bytes",
                remedy="wait until Kafka has some of them, or raise journal.max_bytes",
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
        """Roll the current segment if all of its entries are settled: then it can be deleted."""
        last = self._segments[-1]
        if last.settled and not last.unsettled and not self._is_rolling:
            self._is_rolling = True
            self._writer.queue.put(RollSegment())

    def _segment_of(self, sequence: int) -> Segment | None:
        place = bisect.bisect_right(self._first_sequences, sequence) - 1
        if place < 0 or sequence >= self._segments[place].after:
            return None
        return self._segments[place]

    def _advance(self) -> None:
        """Move the low-water mark to the entry before the first unsettled one."""
        for segment in self._segments:
            if segment.unsettled:
                self._settled = segment.next_unsettled(self._settled + 1) - 1
                return
        self._settled = self.last_durable

    def _delete_settled(self) -> None:
        """Have completely settled segments deleted.

        The segment after one with a void end stays as long as that one: its name says that the end
        is void.
        """
        kept: list[Segment] = []
        for segment in self._segments[:-1]:
            if segment.unsettled or (kept and kept[-1].void):
                kept.append(segment)
            else:
                self._writer.queue.put(RemoveSegment(segment))
        self._segments = [*kept, *self._segments[-1:]]
        self._first_sequences = [segment.first for segment in self._segments]

    def _locate(self, after: int, most_bytes: int) -> list[EntryLocation]:
        locations: list[EntryLocation] = []
        size, sequence = 0, after + 1
        start = max(0, bisect.bisect_right(self._first_sequences, sequence) - 1)
        for segment in self._segments[start:]:
            while (sequence := segment.next_unsettled(sequence)) >= 0:
                length = segment.lengths[sequence - segment.first]
                if locations and size + length > most_bytes:
                    return locations
                offset = segment.offsets[sequence - segment.first]
                locations.append(EntryLocation(segment, sequence, offset, length))
                size += length
                sequence += 1
        return locations


def _notify(callbacks: Iterable[OnDurable], error: JournalBroken | None) -> None:
    for on_durable in callbacks:
        try:
            on_durable(error)
        except Exception:  # a bug in one must not keep the others from being called
            _log.exception("journal: a callback for an entry failed")


def _resolve(future: asyncio.Future[None], error: JournalBroken | None) -> None:
    if future.done():  # cancelled by the caller
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
            # The newest segment was deleted. Its sequence numbers must not be used again: Kafka
            # may have its events, and recovery would mistake the new ones for them.
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
