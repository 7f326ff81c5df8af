"""The journal's own thread: takes what has come, writes it, syncs it, tells the loop once.

There is no timer: while one group is being synced the next one gathers, so a lone entry goes to
disk at once and many share a sync. What comes in one turn of the loop is handed over as one: a
thread that is woken up for each entry takes the interpreter from the loop each time.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from millstream.collect.journal.disk import Disk, remedy, why
from millstream.collect.journal.folder import Identity, IdentityFile
from millstream.collect.journal.record import (
    HEADER,
    MARK,
    RecordKind,
    SegmentHeader,
    bookmark_piece,
    encode,
)
from millstream.collect.journal.segment import Segment
from millstream.collect.journal.spare import FULL, SpareFile

_GROUP_BYTES = 8 << 20  # a group beyond this gains nothing, and its first entry waits for its last
BATCH_BYTES = 1 << 20  # of entries, or one that is larger: what is handed over at once
_log = logging.getLogger(__name__)


class QueuedEntry(NamedTuple):
    """An entry on its way to disk."""

    sequence: int
    payload: bytes
    bookmark: tuple[str, bytes] | None


class EntryBatch(NamedTuple):
    """Entries that came in one turn of the loop."""

    round: int  # counts the failures so far: what was handed in before one fails with it
    entries: list[QueuedEntry]
    size: int  # bytes


class RemoveSegment(NamedTuple):
    """A segment that is no longer needed."""

    segment: Segment


class RollSegment(NamedTuple):
    """SegmentHeader another segment, so that the current one can go."""


class Stop(NamedTuple):
    """Nothing follows."""


@dataclass(frozen=True, slots=True)
class CommittedGroup:
    """Entries that became durable together."""

    segment: Segment
    size: int  # the segment's, with them
    offsets: array[int]
    lengths: array[int]
    bookmarks: dict[str, bytes]


class WriterListener(Protocol):
    """The journal, as its thread sees it. Each call is made in the loop."""

    def began(self, segment: Segment) -> None: ...
    def committed(self, group: CommittedGroup) -> None: ...
    def broke(self, reason: str, remedy: str) -> None: ...
    def removed(self, segment: Segment) -> None: ...


@dataclass(slots=True)
class WriterState:
    """What each new segment must tell of those before it."""

    identity: Identity
    last: int  # the last durable sequence
    number: int  # of the last segment
    previous: int  # the number of the last segment that holds entries
    previous_bytes: int
    bookmarks: dict[str, bytes]


class Writer:
    """Owns the current segment's descriptor. `settled` is asked for in the thread, at any time."""

    def __init__(
        self,
        folder: Path,
        segment_bytes: int,
        retry_seconds: float,
        disk: Disk,
        state: WriterState,
        identity_file: IdentityFile,
        settled: Callable[[], int],
        call: Callable[..., object],
        listener: WriterListener,
    ) -> None:
        self.queue: queue.SimpleQueue[EntryBatch | RemoveSegment | RollSegment | Stop] = (
            queue.SimpleQueue()
        )
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._retry_seconds = retry_seconds
        self._disk = disk
        self._state = state
        self._identity_file = identity_file
        self._settled = settled
        self._settled_written = 0
        self._call = call
        self._listener = listener
        self._segment: Segment | None = None
        self._descriptor = -1
        self._size = 0
        self._round = 0
        self._next_try = 0.0
        self._is_to_roll = False
        self._removing: list[Segment] = []
        self._spare = SpareFile(folder, disk)
        self.thread = threading.Thread(target=self._run, name="journal", daemon=True)

    def _run(self) -> None:
        try:
            self._write_until_stopped()
        except BaseException as error:
            # Nobody would write what is appended from now on: its senders must be told.
            _log.exception("journal: the writer has ended")
            self._call(self._listener.broke, f"the writer has ended: {error!r}", "restart it")
            raise

    def _write_until_stopped(self) -> None:
        stopping = False
        self._spare.keep()
        self._attempt()
        while not stopping:
            entries, stopping = self._take()
            if self._segment is not None and entries:
                self._commit(entries)
            if self._is_to_roll and self._segment is not None:
                self._roll()
            self._is_to_roll = False
            if self._segment is None and not stopping and time.monotonic() >= self._next_try:
                self._attempt()
            self._remove()
        if self._segment is not None and self._settled() > self._settled_written:
            self._commit([])
        if self._segment is not None:
            self._disk.close(self._descriptor)
            self._note_closed()

    def _note_closed(self) -> None:
        state = self._state
        closed = msgspec.structs.replace(
            state.identity, closed_bytes=self._size, closed_last=state.last
        )
        try:
            self._identity_file.write(closed)
        except OSError as error:
            _log.debug("journal: that it is closed cannot be noted: %s", error)

    def _take(self) -> tuple[list[QueuedEntry], bool]:
        """All that has come; waits for the first, or until a new segment is to be tried."""
        patience = None
        if self._segment is None:
            patience = max(0.0, self._next_try - time.monotonic())
        entries: list[QueuedEntry] = []
        size = 0
        try:
            item = self.queue.get(timeout=patience)
            while True:
                if isinstance(item, EntryBatch):
                    if item.round == self._round:
                        entries += item.entries
                        size += item.size
                elif isinstance(item, RemoveSegment):
                    self._removing.append(item.segment)
                elif isinstance(item, RollSegment):
                    self._is_to_roll = True
                    break
                else:
                    return entries, True
                if size >= _GROUP_BYTES:
                    break
                item = self.queue.get_nowait()
        except queue.Empty:
            pass
        return entries, False

    def _commit(self, entries: list[QueuedEntry]) -> None:
        if self._size >= self._segment_bytes and not self._roll():
            return
        segment = self._segment
        assert segment is not None
        data, group = self._encode(segment, entries)
        try:
            self._disk.write(self._descriptor, data)
            self._disk.sync(self._descriptor)
        except OSError as error:
            self._give_up(segment)
            self._fail(f"cannot append to journal segment {segment.path.name}", error)
            return
        self._size = group.size
        self._state.previous_bytes = group.size
        if entries:
            self._state.last = entries[-1].sequence
            self._state.bookmarks.update(group.bookmarks)
        self._call(self._listener.committed, group)

    def _encode(self, segment: Segment, entries: list[QueuedEntry]) -> tuple[bytes, CommittedGroup]:
        mark, position = segment.mark, self._size
        pieces: list[bytes] = []
        offsets, lengths = array("Q"), array("I")
        bookmarks: dict[str, bytes] = {}
        for sequence, payload, bookmark in entries:
            if bookmark is None:
                length = len(payload)
                pieces += encode(mark, RecordKind.ENTRY, sequence, payload)
            else:
                front = bookmark_piece(*bookmark)
                length = len(front) + len(payload)
                pieces += encode(mark, RecordKind.ENTRY_WITH_BOOKMARK, sequence, front, payload)
                bookmarks[bookmark[0]] = bookmark[1]
            offsets.append(position)
            lengths.append(length)
            position += HEADER + length
        settled = self._settled()
        if settled > self._settled_written:
            # It rides along: a sync of its own would only spare recovery some questions to Kafka.
            last = entries[-1].sequence if entries else self._state.last
            pieces += encode(mark, RecordKind.SETTLED, last, settled.to_bytes(8, "little"))
            position += HEADER + 8
            self._settled_written = settled
        return b"".join(pieces), CommittedGroup(segment, position, offsets, lengths, bookmarks)

    def _give_up(self, segment: Segment) -> None:
        """After a failed write or sync nobody knows what the file holds: it is not touched again.

        But it is shortened to what was durable before, so that the group which failed does not
        come back if this process is killed before a new segment can say so.
        """
        segment.void = True
        try:
            self._disk.truncate(self._descriptor, self._size)
        except OSError as error:
            _log.debug("journal: %s cannot be shortened: %s", segment.path, error)
        self._release()

    def _roll(self) -> bool:
        self._release()
        try:
            self._begin()
        except OSError as error:
            self._fail(f"cannot begin a journal segment in {self._folder}", error)
            return False
        return True

    def _release(self) -> None:
        self._segment = None
        try:
            self._disk.close(self._descriptor)
        except OSError as error:
            _log.debug("journal: closing a segment: %s", error)

    def _attempt(self) -> None:
        """Try to begin a segment; the next try is a while later."""
        try:
            self._begin()
        except OSError as error:
            self._fail(f"cannot begin a journal segment in {self._folder}", error)

    def _fail(self, what: str, error: OSError) -> None:
        self._round += 1
        self._settled_written = 0
        self._next_try = time.monotonic() + self._retry_seconds
        self._call(self._listener.broke, f"{what}: {why(error)}", remedy(error))

    def _begin(self) -> None:
        """A new segment that takes entries; OSError if the disk refuses, and nothing is changed."""
        try:
            self._make_segment()
        except OSError as error:
            if error.errno not in FULL or not self._spare.give_up():
                raise
            self._make_segment()

    def _make_segment(self) -> None:
        state = self._state
        state.number += 1
        segment = Segment.at(self._folder, state.number, state.last + 1, secrets.token_bytes(MARK))
        settled = self._settled()
        begin = SegmentHeader(
            state.identity.identity,
            state.identity.start,
            settled,
            state.previous,
            state.previous_bytes,
            state.bookmarks,
        )
        payload = msgspec.msgpack.encode(begin)
        # Twice: a damaged bit must not cost the bookmarks.
        data = b"".join(encode(segment.mark, RecordKind.BEGIN, state.last, payload) * 2)
        descriptor = self._disk.create(segment.path)
        try:
            self._disk.write(descriptor, data)
            self._disk.sync(descriptor)
            self._disk.sync_folder(self._folder)
            most = (self._segment_bytes + _GROUP_BYTES + BATCH_BYTES) // HEADER + 1
            identity = msgspec.structs.replace(
                state.identity, reserved=state.last + most, newest=segment.number
            )
            self._identity_file.write(identity)
        except OSError:
            self._discard(segment, descriptor)
            raise
        state.identity = identity
        segment.size = self._size = len(data)
        self._segment, self._descriptor = segment, descriptor
        self._settled_written = settled
        state.previous, state.previous_bytes = segment.number, len(data)
        self._call(self._listener.began, segment)

    def _discard(self, segment: Segment, descriptor: int) -> None:
        try:
            self._disk.close(descriptor)
            self._disk.remove(segment.path)
        except OSError as error:
            # It holds no entry, and the next segment's number and first sequence make it void.
            _log.debug("journal: %s cannot be removed: %s", segment.path, error)

    def _remove(self) -> None:
        while self._removing:
            segment = self._removing[0]
            try:
                self._disk.remove(segment.path)
                self._disk.sync_folder(self._folder)
            except OSError as error:
                _log.warning("journal: %s cannot be removed: %s", segment.path, why(error))
                return
            self._removing.pop(0)
            self._call(self._listener.removed, segment)
            self._spare.keep()
