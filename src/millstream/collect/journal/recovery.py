"""What a folder holds when the journal is opened: after a clean end, a crash, or damage."""

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


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was found on opening."""

    entries: int = 0  # pending: durable, and not known to be settled
    bytes: int = 0  # theirs
    cut_bytes: int = 0  # the torn end of the last write, which was never acknowledged
    damaged: list[Path] = field(default_factory=list)  # damaged records that were set aside now
    lost: int = 0  # accepted entries that were found to be lost with them
    seconds: float = 0.0


@dataclass(slots=True)
class RecoveredState:
    """The journal as it is on disk."""

    segments: list[Segment] = field(default_factory=list)
    bookmarks: dict[str, bytes] = field(default_factory=dict)
    identity: str = ""
    start: int = 0
    settled: int = 0
    last: int = 0  # no entry has a sequence beyond this one
    cut_bytes: int = 0
    damaged: list[Path] = field(default_factory=list)
    pieces: list[DamagedPiece] = field(default_factory=list)  # damaged ones that were not torn off
    lost: int = 0
    seconds: float = 0.0

    def report(self) -> Recovery:
        return Recovery(
            sum(segment.unsettled for segment in self.segments),
            sum(
                length
                for segment in self.segments
                for length, settled in zip(segment.lengths, segment.settled, strict=True)
                if not settled
            ),
            self.cut_bytes,
            self.damaged,
            self.lost,
            self.seconds,
        )


class CleanClose(NamedTuple):
    """The last segment, as it was when the journal was closed in order."""

    segment: int = 0
    size: int = 0
    last: int = 0  # the last sequence in it


def recover(folder: Path, disk: Disk, closed: CleanClose = CleanClose()) -> RecoveredState:  # noqa: B008
    """Read all segments; cut a torn end, set damaged records aside. Blocks."""
    began = time.perf_counter()
    found = RecoveredState()
    named = (Segment.named(path) for path in folder.iterdir())
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
        _Reading(found, segment, disk, ended).run(min(size, durable), durable, following, last)
        found.segments.append(segment)
    _settle(found)
    _note_lost(found, DamageStore(folder / "damaged"))
    _tell_kept(folder / "damaged")
    found.seconds = time.perf_counter() - began
    return found


def _tell_kept(folder: Path) -> None:
    """Say what lies there from all starts: only a person can tell whether it may go."""
    try:
        sizes = [path.stat().st_size for path in folder.iterdir()]
    except OSError:  # there is none, or somebody deletes from it just now
        return
    if sizes:
        _log.warning(
            "journal: %s keeps what was ever set aside, %d files of %d bytes, besides "
            "journal.max_bytes; `millstream failed list` shows what was lost, and those of the "
            "kind .cut can be deleted: nobody was answered for them",
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
    """Low-water marks are written later than what they speak of: known only at the end."""
    for segment in found.segments:
        known = min(found.settled - segment.first + 1, len(segment.settled))
        if known > 0:
            segment.settled[:known] = b"\1" * known
        segment.unsettled = segment.settled.count(0)
        found.last = max(found.last, segment.after - 1)


def _note_lost(found: RecoveredState, store: DamageStore) -> None:
    """Write down what was lost: of damaged entries, those that are not known to be in Kafka."""
    for piece in found.pieces:
        first = max(piece.first, found.settled + 1)
        entries = max(0, piece.first + piece.entries - first)
        lost = msgspec.structs.replace(piece, first=first, entries=entries)
        if store.note(lost) and entries:
            found.lost += entries
            _log.error(
                "journal: %d accepted entries, from sequence %d on, are lost: %s; see "
                "`millstream failed list`",
                entries,
                first,
                piece.reason,
            )


class _Reading:
    """The reading of one segment."""

    def __init__(
        self, found: RecoveredState, segment: Segment, disk: Disk, ended: CleanClose | None
    ) -> None:
        self._found = found
        self._segment = segment
        self._disk = disk
        self._ended = ended  # in order: whatever was in it was answered
        self._damaged: DamagedPiece | None = None  # the piece behind which a record is looked for

    def run(self, end: int, durable: int, following: Segment | None, last: bool) -> None:
        """Read up to `end`; the segment had `durable` bytes when it was ended."""
        segment = self._segment
        segment.size = end
        with open(segment.path, "rb") as file:
            before = None if following is None else following.first
            for each in Scanner(file, segment, end, before):
                if isinstance(each, JournalRecord):
                    self._end_damage(each.sequence + (each.kind not in ENTRIES))
                    self._take(each)
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
        """The entry of that sequence comes behind the damaged piece, or begins the next segment."""
        piece, self._damaged = self._damaged, None
        if piece is not None:
            # A segment may begin later than the one before it ends: a torn end leaves a gap.
            most = max(1, piece.size // HEADER) if piece.size else following - piece.first
            entries = min(following - piece.first, most)
            self._found.pieces.append(msgspec.structs.replace(piece, entries=max(0, entries)))

    def _miss(self, end: int, durable: int) -> None:
        """Somebody or the file system cut off what had been on disk."""
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
        """What a killed process wrote may be in the machine's memory only; we build on it."""
        try:
            self._disk.sync(file.fileno())
        except OSError as error:
            _log.warning("journal: %s cannot be synced: %s", self._segment.path, why(error))

    def _take(self, record: JournalRecord) -> None:
        found, segment = self._found, self._segment
        match record.kind:
            case RecordKind.ENTRY | RecordKind.ENTRY_WITH_BOOKMARK:
                segment.skip_to(record.sequence)
                segment.add(record.offset, len(record.payload))
                if record.kind == RecordKind.ENTRY_WITH_BOOKMARK:
                    source, bookmark, _ = split_bookmark(record.payload)
                    found.bookmarks[source] = bookmark
            case RecordKind.SETTLED:
                # The entries before it may be damaged: their sequences are not used again.
                segment.skip_to(record.sequence + 1)
                found.settled = max(found.settled, int.from_bytes(record.payload, "little"))
            case RecordKind.BEGIN:
                begin = _decode(record)
                found.settled = max(found.settled, begin.settled)
                found.bookmarks.update(begin.bookmarks)
                found.identity, found.start = begin.identity, max(found.start, begin.start)

    def _cut(self, file: BinaryIO, damage: DamagedRange) -> None:
        """A crash tears the last write; nothing of it had been acknowledged.

        Of a damaged last record the sequence may be known in Kafka: so the bytes are kept, and as
        many sequences as they can have held are not used again.
        """
        size = damage.end - damage.begin
        data = self._bytes_of(file, damage)
        torn = self._ended is None and is_torn(data, self._segment.mark, self._segment.after)
        if torn:
            path = save_damaged(self._disk, self._segment, damage.begin, data, "cut")
            _log.warning(
                "journal: the last %d bytes of %s are no whole record, as after a crash in the "
                "middle of a write; cut, and kept in %s",
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
        self._found.cut_bytes += size
        self._found.last = self._segment.after - 1 + size // HEADER + 1

    def _set_aside(self, file: BinaryIO, damage: DamagedRange, entries: int = 0) -> None:
        data = self._bytes_of(file, damage)
        path = save_damaged(self._disk, self._segment, damage.begin, data)
        self._end_damage(self._segment.after)
        words = f"bytes {damage.begin:,} to {damage.end:,} are damaged"
        self._damaged = self._piece(damage.begin, data, words, entries)
        if path is None:
            return
        self._found.damaged.append(path)
        _log.error(
            "journal: bytes %d to %d of %s are damaged; set aside as %s, and read on behind them",
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
    """Keep bytes of a segment in `damaged/`; None if they are there already."""
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
