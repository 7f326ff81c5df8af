"""Reads a journal folder on opening: after a clean close, a crash, or damage."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from millstream.collect.journal.damage import DamagedPiece, DamageStore, checksum_of
from millstream.collect.journal.disk import Disk, why
from millstream.collect.journal.record import (
    ENTRIES,
    HEADER,
    JournalRecord,
    RecordKind,
    SegmentHeader,
    entries_in,
    is_torn,
    split_bookmark,
)
from millstream.collect.journal.scan import DamagedRange, Scanner
from millstream.collect.journal.segment import Segment
from millstream.runtime.home import private_opener
from millstream.values.clock import now_ms

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Recovery:
    """What was found on opening a journal."""

    entries: int = 0  # pending: durable, and not known to be settled
    bytes: int = 0  # of the pending entries
    cut_bytes: int = 0  # the torn end of the last write, which was never acknowledged
    damaged: list[Path] = field(default_factory=list)  # records that were set aside now
    lost: int = 0  # accepted entries that are lost with them
    seconds: float = 0.0


@dataclass(slots=True)
class RecoveredState:
    """The state of the journal on disk."""

    segments: list[Segment] = field(default_factory=list)
    bookmarks: dict[str, bytes] = field(default_factory=dict)
    identity: str = ""
    start: int = 0
    settled: int = 0
    last: int = 0  # the largest sequence number
    pieces: list[DamagedPiece] = field(default_factory=list)  # damaged, and no torn ends
    report: Recovery = field(default_factory=Recovery)


class CleanClose(NamedTuple):
    """The last segment after a clean close."""

    segment: int = 0
    size: int = 0
    last: int = 0  # the last sequence number in it


def recover(folder: Path, disk: Disk, closed: CleanClose = CleanClose()) -> RecoveredState:  # noqa: B008
    """Read all segments, cut a torn end, and set damaged records aside. Blocks."""
    began = time.perf_counter()
    found = RecoveredState()
    named = (Segment.from_path(path) for path in folder.iterdir())
    segments = sorted((s for s in named if s is not None), key=lambda segment: segment.number)
    begins = [_begin_of(segment) for segment in segments]
    for place, segment in enumerate(segments):
        last = place + 1 == len(segments)
        following = None if last else segments[place + 1]
        size = durable = os.path.getsize(segment.path)
        ended = closed if closed.segment == segment.number else None
        if ended is not None:
            durable = ended.size
        for begin in filter(None, begins[place + 1 :]):
            if begin.previous == segment.number:
                segment.void = begin.previous_bytes < size
                durable = begin.previous_bytes
        _SegmentRecovery(found, segment, disk, ended).run(
            min(size, durable), durable, following, last
        )
        found.segments.append(segment)
    _settle(found)
    _note_lost(found, DamageStore(folder / "damaged"))
    _warn_of_files(folder / "damaged")
    found.report.seconds = time.perf_counter() - began
    return found


def _warn_of_files(folder: Path) -> None:
    """Report all files that were ever set aside: only an operator can decide to delete them."""
    try:
        sizes = [path.stat().st_size for path in folder.iterdir()]
    except OSError:  # it does not exist, or files are being deleted
        return
    if sizes:
        _log.warning(
            "journal: %s holds all that was ever set aside, %d files of %d bytes, not counted in "
            "journal.max_bytes; `millstream failed list` shows what was lost; files named .cut "
            "can be deleted: their senders got no answer",
            folder,
            len(sizes),
            sum(sizes),
        )


def _begin_of(segment: Segment) -> SegmentHeader | None:
    with open(segment.path, "rb") as file:
        for record in Scanner(file, segment, os.path.getsize(segment.path), None):
            if isinstance(record, JournalRecord):
                return _decode(record) if record.kind == RecordKind.BEGIN else None
    return None


def _decode(record: JournalRecord) -> SegmentHeader:
    return msgspec.msgpack.decode(record.payload, type=SegmentHeader)


def _settle(found: RecoveredState) -> None:
    """Apply the low-water mark: it is written after its entries, so it is known only now."""
    for segment in found.segments:
        known = min(found.settled - segment.first + 1, len(segment.settled))
        if known > 0:
            segment.settled[:known] = b"\1" * known
        segment.unsettled = segment.settled.count(0)
        found.last = max(found.last, segment.after - 1)
        found.report.entries += segment.unsettled
        lengths = zip(segment.lengths, segment.settled, strict=True)
        found.report.bytes += sum(length for length, settled in lengths if not settled)


def _note_lost(found: RecoveredState, store: DamageStore) -> None:
    """Store which damaged entries are lost: those that are not settled."""
    for piece in found.pieces:
        first = max(piece.first, found.settled + 1)
        entries = max(0, piece.first + piece.entries - first)
        lost = msgspec.structs.replace(piece, first=first, entries=entries)
        if store.note(lost) and entries:
            found.report.lost += entries
            _log.error(
                "journal: %d accepted entries, from sequence %d on, are lost: %s; see "
                "`millstream failed list`",
                entries,
                first,
                piece.reason,
            )


class _SegmentRecovery:
    """Recovers one segment."""

    def __init__(
        self, found: RecoveredState, segment: Segment, disk: Disk, ended: CleanClose | None
    ) -> None:
        self._found = found
        self._segment = segment
        self._disk = disk
        self._ended = ended  # after a clean close, all of it was acknowledged
        self._damaged: DamagedPiece | None = None  # the piece whose end is not known yet

    def run(self, end: int, durable: int, following: Segment | None, last: bool) -> None:
        """Read up to `end`; the segment once had `durable` valid bytes."""
        segment = self._segment
        segment.size = end
        with open(segment.path, "rb") as file:
            before = None if following is None else following.first
            for each in Scanner(file, segment, end, before):
                if isinstance(each, JournalRecord):
                    self._end_damage(each.sequence + (each.kind not in ENTRIES))
                    self._apply(each)
                elif last and each.end == end:
                    self._cut(file, each)
                else:
                    self._set_aside(file, each)
            if end < durable:
                self._miss(end, durable)
            if following is not None:
                self._end_damage(following.first)
            elif self._ended is not None:
                self._end_damage(self._ended.last + 1)
            elif self._damaged is not None:
                self._end_damage(segment.after + self._damaged.entries)
            if last:
                self._sync(file)

    def _end_damage(self, following: int) -> None:
        """Complete the damaged piece: the next entry has sequence number `following`."""
        piece, self._damaged = self._damaged, None
        if piece is not None:
            # A torn end leaves a gap before the next segment.
            most = max(1, piece.size // HEADER) if piece.size else following - piece.first
            entries = min(following - piece.first, most)
            self._found.pieces.append(msgspec.structs.replace(piece, entries=max(0, entries)))

    def _miss(self, end: int, durable: int) -> None:
        """Note that durable bytes at the end are missing."""
        self._end_damage(self._segment.after)
        self._damaged = self._piece(end, b"", f"{durable - end:,} bytes are missing at its end")
        _log.error("journal: %s had %d bytes, and has %d", self._segment.path, durable, end)

    def _piece(self, offset: int, data: bytes, reason: str, entries: int = 0) -> DamagedPiece:
        segment = self._segment
        return DamagedPiece(
            segment.number,
            offset,
            len(data),
            checksum_of(data),
            segment.mark.hex(),
            first=segment.after,
            entries=entries,
            reason=f"journal segment {segment.path.name}: {reason}",
            found_at=now_ms(),
        )

    def _sync(self, file: BinaryIO) -> None:
        """Sync the file: the last write of a killed process may be only in the page cache."""
        try:
            self._disk.sync(file.fileno())
        except OSError as error:
            _log.warning("journal: %s cannot be synced: %s", self._segment.path, why(error))

    def _apply(self, record: JournalRecord) -> None:
        found, segment = self._found, self._segment
        match record.kind:
            case RecordKind.ENTRY | RecordKind.ENTRY_WITH_BOOKMARK:
                segment.skip_to(record.sequence)
                segment.add(record.offset, len(record.payload))
                if record.kind == RecordKind.ENTRY_WITH_BOOKMARK:
                    source, bookmark, _ = split_bookmark(record.payload)
                    found.bookmarks[source] = bookmark
            case RecordKind.SETTLED:
                # Entries before it may be damaged: their sequence numbers are not used again.
                segment.skip_to(record.sequence + 1)
                found.settled = max(found.settled, int.from_bytes(record.payload, "little"))
            case RecordKind.BEGIN:
                begin = _decode(record)
                found.settled = max(found.settled, begin.settled)
                found.bookmarks.update(begin.bookmarks)
                found.identity, found.start = begin.identity, max(found.start, begin.start)

    def _cut(self, file: BinaryIO, damage: DamagedRange) -> None:
        """Cut the damaged end of the last segment.

        A write that a crash has torn was never acknowledged. But entries of a damaged end may be in
        Kafka: so the bytes are kept, and their possible sequence numbers are not used again.
        """
        size = damage.end - damage.begin
        data = self._bytes_of(file, damage)
        torn = self._ended is None and is_torn(data, self._segment.mark, self._segment.after)
        if torn:
            path = save_damaged(self._disk, self._segment, damage.begin, data, "cut")
            _log.warning(
                "journal: the last %d bytes of %s are an incomplete record, as after a crash in a "
                "write; they were cut off, and are kept in %s",
                size,
                self._segment.path,
                path,
            )
        else:
            entries = sum(1 for _ in entries_in(data, self._segment.mark))
            self._set_aside(file, damage, entries)
        with open(self._segment.path, "r+b") as writable:
            writable.truncate(damage.begin)
            os.fsync(writable.fileno())
        self._segment.size = damage.begin
        self._found.report.cut_bytes += size
        self._found.last = self._segment.after - 1 + size // HEADER + 1

    def _set_aside(self, file: BinaryIO, damage: DamagedRange, entries: int = 0) -> None:
        data = self._bytes_of(file, damage)
        path = save_damaged(self._disk, self._segment, damage.begin, data)
        self._end_damage(self._segment.after)
        words = f"bytes {damage.begin:,} to {damage.end:,} are damaged"
        self._damaged = self._piece(damage.begin, data, words, entries)
        if path is None:
            return
        self._found.report.damaged.append(path)
        _log.error(
            "journal: bytes %d to %d of %s are damaged; set aside as %s, and skipped",
            damage.begin,
            damage.end,
            self._segment.path,
            path,
        )

    def _bytes_of(self, file: BinaryIO, damage: DamagedRange) -> bytes:
        file.seek(damage.begin)
        return file.read(damage.end - damage.begin)


def save_damaged(
    disk: Disk, segment: Segment, offset: int, data: bytes, kind: str = "damaged"
) -> Path | None:
    """Store bytes of a segment in `damaged/`; None if they are there already."""
    folder = segment.path.parent / "damaged"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{segment.number:08}-{offset}.{kind}"
    if path.exists() and path.read_bytes() == data:
        return None
    with open(path, "wb", opener=private_opener) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    disk.sync_folder(folder)
    disk.sync_folder(folder.parent)
    return path
