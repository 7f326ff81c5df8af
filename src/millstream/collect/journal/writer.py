"""The journal's writer thread: group commit.

There is no timer: while one group is being synced, the next one collects. So a lone entry goes to
disk at once, and many entries share a sync. All entries of one turn of the loop are passed to the
thread together: waking it for each entry would take the interpreter from the loop each time.
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

_GROUP_BYTES = 8 << 20  # a larger group gains nothing, and delays its first entry
BATCH_BYTES = 1 << 20  # of entries that are passed to the thread together
_log = logging.getLogger(__name__)


class QueuedEntry(NamedTuple):
    """An entry to be written."""

    sequence: int
    payload: bytes
    bookmark: tuple[str, bytes] | None


class EntryBatch(NamedTuple):
    """Entries that were appended in one turn of the loop."""

    failures: int  # so far: a batch from before a failure fails with it
    entries: list[QueuedEntry]
    size: int  # bytes


class RemoveSegment(NamedTuple):
    """Delete a segment."""

    segment: Segment


class RollSegment(NamedTuple):
    """Begin another segment, so that the current one can be deleted."""


class Stop(NamedTuple):
    """End the thread."""


@dataclass(frozen=True, slots=True)
class CommittedGroup:
    """Entries that became durable together."""

    segment: Segment
    size: int  # of the segment, with them
    offsets: array[int]
    lengths: array[int]
    bookmarks: dict[str, bytes]


class WriterListener(Protocol):
    """The journal, for its thread. Each call is made in the loop."""

    def on_segment(self, segment: Segment) -> None: ...
    def on_committed(self, group: CommittedGroup) -> None: ...
    def on_broken(self, reason: str, remedy: str) -> None: ...
    def on_removed(self, segment: Segment) -> None: ...


@dataclass(slots=True)
class WriterState:
    """What the header of the next segment must contain."""

    identity: Identity
    last: int  # the last durable sequence number
    number: int  # of the last segment
    previous: int  # the number of the last segment that holds entries
    previous_bytes: int
    bookmarks: dict[str, bytes]


class Writer:
    """Owns the current segment's descriptor. The thread calls `settled` at any time."""

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
        self._failures = 0
        self._next_try = 0.0
        self._must_roll = False
        self._removing: list[Segment] = []
        self._spare = SpareFile(folder, disk)
        self.thread = threading.Thread(target=self._run, name="journal", daemon=True)

    def _run(self) -> None:
        try:
            self._write_until_stopped()
        except BaseException as error:
            # Nothing can be written from now on: the senders must get an error.
            _log.exception("journal: the writer thread has failed")
            self._call(
                self._listener.on_broken, f"the writer thread has failed: {error!r}", "restart it"
            )
            raise

    def _write_until_stopped(self) -> None:
        stopping = False
        self._spare.create()
        self._try_begin()
        while not stopping:
            entries, stopping = self._next_group()
            if self._segment is not None and entries:
                self._commit(entries)
            if self._must_roll and self._segment is not None:
                self._roll()
            self._must_roll = False
            if self._segment is None and not stopping and time.monotonic() >= self._next_try:
                self._try_begin()
            self._remove()
        if self._segment is not None and self._settled() > self._settled_written:
            self._commit([])
        if self._segment is not None:
            self._disk.close(self._descriptor)
            self._write_clean_close()

    def _write_clean_close(self) -> None:
        state = self._state
        closed = msgspec.structs.replace(
            state.identity, closed_bytes=self._size, closed_last=state.last
        )
        try:
            self._identity_file.write(closed)
        except OSError as error:
            _log.debug("journal: cannot note the clean close: %s", error)

    def _next_group(self) -> tuple[list[QueuedEntry], bool]:
        """The entries that wait; waits for the first, or until it is time to try a new segment."""
        timeout = None
        if self._segment is None:
            timeout = max(0.0, self._next_try - time.monotonic())
        entries: list[QueuedEntry] = []
        size = 0
        try:
            item = self.queue.get(timeout=timeout)
            while True:
                if isinstance(item, EntryBatch):
                    if item.failures == self._failures:
                        entries += item.entries
                        size += item.size
                elif isinstance(item, RemoveSegment):
                    self._removing.append(item.segment)
                elif isinstance(item, RollSegment):
                    self._must_roll = True
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
            self._abandon(segment)
            self._fail(f"cannot append to journal segment {segment.path.name}", error)
            return
        self._size = group.size
        self._state.previous_bytes = group.size
        if entries:
            self._state.last = entries[-1].sequence
            self._state.bookmarks.update(group.bookmarks)
        self._call(self._listener.on_committed, group)

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
            # Only together with entries: its own sync would only save recovery some reads of Kafka.
            last = entries[-1].sequence if entries else self._state.last
            pieces += encode(mark, RecordKind.SETTLED, last, settled.to_bytes(8, "little"))
            position += HEADER + 8
            self._settled_written = settled
        return b"".join(pieces), CommittedGroup(segment, position, offsets, lengths, bookmarks)

    def _abandon(self, segment: Segment) -> None:
        """Stop writing to a segment: after a failed write or sync its contents are unknown.

        It is truncated to the durable size. Otherwise the failed group would come back if this
        process is killed before a new segment marks it as void.
        """
        segment.void = True
        try:
            self._disk.truncate(self._descriptor, self._size)
        except OSError as error:
            _log.debug("journal: cannot truncate %s: %s", segment.path, error)
        self._release()

    def _roll(self) -> bool:
        self._release()
        return self._try_begin()

    def _release(self) -> None:
        self._segment = None
        try:
            self._disk.close(self._descriptor)
        except OSError as error:
            _log.debug("journal: closing a segment: %s", error)

    def _try_begin(self) -> bool:
        """Try to begin a segment; whether that worked. If not, the next try is later."""
        try:
            self._begin()
        except OSError as error:
            self._fail(f"cannot begin a journal segment in {self._folder}", error)
            return False
        return True

    def _fail(self, what: str, error: OSError) -> None:
        self._failures += 1
        self._settled_written = 0
        self._next_try = time.monotonic() + self._retry_seconds
        self._call(self._listener.on_broken, f"{what}: {why(error)}", remedy(error))

    def _begin(self) -> None:
        """Begin a new segment; OSError if the disk fails, with nothing changed."""
        try:
            self._create_segment()
        except OSError as error:
            if error.errno not in FULL or not self._spare.delete():
                raise
            self._create_segment()

    def _create_segment(self) -> None:
        state = self._state
        state.number += 1
        segment = Segment.create(
            self._folder, state.number, state.last + 1, secrets.token_bytes(MARK)
        )
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
        # Twice: one damaged bit must not lose the bookmarks.
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
        self._call(self._listener.on_segment, segment)

    def _discard(self, segment: Segment, descriptor: int) -> None:
        try:
            self._disk.close(descriptor)
            self._disk.remove(segment.path)
        except OSError as error:
            # It holds no entry, and the next segment makes it void.
            _log.debug("journal: cannot remove %s: %s", segment.path, error)

    def _remove(self) -> None:
        while self._removing:
            segment = self._removing[0]
            try:
                self._disk.remove(segment.path)
                self._disk.sync_folder(self._folder)
            except OSError as error:
                _log.warning("journal: cannot remove %s: %s", segment.path, why(error))
                return
            self._removing.pop(0)
            self._call(self._listener.on_removed, segment)
            self._spare.create()
