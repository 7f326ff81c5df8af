"""What a folder holds when the journal is opened: after a clean end, a crash, or damage."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec

from millstream.collect.journal.disk import Disk, why
from millstream.collect.journal.record import (
    HEADER,
    Begin,
    Kind,
    Record,
    split_bookmark,
)
from millstream.collect.journal.scan import Damage, Scanner
from millstream.collect.journal.segment import Segment

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was found on opening."""

    entries: int = 0  # pending: durable, and not known to be settled
    bytes: int = 0  # theirs
    cut_bytes: int = 0  # the torn end of the last write, which was never acknowledged
    damaged: list[Path] = field(default_factory=list)  # damaged records that were set aside now
    seconds: float = 0.0


@dataclass(slots=True)
class Found:
    """The journal as it is on disk."""

    segments: list[Segment] = field(default_factory=list)
    bookmarks: dict[str, bytes] = field(default_factory=dict)
    identity: str = ""
    start: int = 0
    settled: int = 0
    last: int = 0  # no entry has a sequence beyond this one
    cut_bytes: int = 0
    damaged: list[Path] = field(default_factory=list)
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
            self.seconds,
        )


def recover(folder: Path, disk: Disk) -> Found:
    """Read all segments; cut a torn end, set damaged records aside. Blocks."""
    began = time.perf_counter()
    found = Found()
    named = (Segment.named(path) for path in folder.iterdir())
    segments = sorted((s for s in named if s is not None), key=lambda segment: segment.number)
    begins = [_begin_of(segment) for segment in segments]
    for place, segment in enumerate(segments):
        last = place + 1 == len(segments)
        following = None if last else segments[place + 1]
        end = os.path.getsize(segment.path)
        for begin in filter(None, begins[place + 1 :]):
            if begin.previous == segment.number:
                segment.void = begin.previous_bytes < end
                end = min(end, begin.previous_bytes)
        _Reading(found, segment, disk).run(end, following, last)
        found.segments.append(segment)
    _settle(found)
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
        _logger.warning(
            "journal: %s keeps what was ever set aside, %d files of %d bytes, besides "
            "journal.max_bytes; delete those that nobody needs any more",
            folder,
            len(sizes),
            sum(sizes),
        )


def _begin_of(segment: Segment) -> Begin | None:
    with open(segment.path, "rb") as file:
        for record in Scanner(file, segment, os.path.getsize(segment.path), None):
            if isinstance(record, Record):
                return _decode(record) if record.kind == Kind.BEGIN else None
    return None


def _decode(record: Record) -> Begin:
    return msgspec.msgpack.decode(record.payload, type=Begin)


def _settle(found: Found) -> None:
    """Low-water marks are written later than what they speak of: known only at the end."""
    for segment in found.segments:
        known = min(found.settled - segment.first + 1, len(segment.settled))
        if known > 0:
            segment.settled[:known] = b"\1" * known
        segment.unsettled = segment.settled.count(0)
        found.last = max(found.last, segment.after - 1)


class _Reading:
    """The reading of one segment."""

    def __init__(self, found: Found, segment: Segment, disk: Disk) -> None:
        self._found = found
        self._segment = segment
        self._disk = disk

    def run(self, end: int, following: Segment | None, last: bool) -> None:
        segment = self._segment
        segment.size = end
        with open(segment.path, "rb") as file:
            before = None if following is None else following.first
            for each in Scanner(file, segment, end, before):
                if isinstance(each, Record):
                    self._take(each)
                elif last and each.end == end:
                    self._cut(file, each)
                else:
                    self._set_aside(file, each)
            if last:
                self._sync(file)

    def _sync(self, file: BinaryIO) -> None:
        """What a killed process wrote may be in the machine's memory only; we build on it."""
        try:
            self._disk.sync(file.fileno())
        except OSError as error:
            _logger.warning("journal: %s cannot be synced: %s", self._segment.path, why(error))

    def _take(self, record: Record) -> None:
        found, segment = self._found, self._segment
        match record.kind:
            case Kind.ENTRY | Kind.ENTRY_WITH_BOOKMARK:
                segment.skip_to(record.sequence)
                segment.add(record.offset, len(record.payload))
                if record.kind == Kind.ENTRY_WITH_BOOKMARK:
                    source, bookmark, _ = split_bookmark(record.payload)
                    found.bookmarks[source] = bookmark
            case Kind.SETTLED:
                # The entries before it may be damaged: their sequences are not used again.
                segment.skip_to(record.sequence + 1)
                found.settled = max(found.settled, int.from_bytes(record.payload, "little"))
            case Kind.BEGIN:
                begin = _decode(record)
                found.settled = max(found.settled, begin.settled)
                found.bookmarks.update(begin.bookmarks)
                found.identity, found.start = begin.identity, max(found.start, begin.start)

    def _cut(self, file: BinaryIO, damage: Damage) -> None:
        """A crash tears the last write; nothing of it had been acknowledged.

        A damaged last record looks the same, and its sequence may be known in Kafka: so the bytes
        are kept, and as many sequences as they can have held are not used again.
        """
        size = damage.end - damage.begin
        path = self._save(file, damage, "cut")
        with open(self._segment.path, "r+b") as writable:
            writable.truncate(damage.begin)
            os.fsync(writable.fileno())
        self._segment.size = damage.begin
        self._found.cut_bytes += size
        self._found.last = self._segment.after - 1 + size // HEADER + 1
        _logger.warning(
            "journal: the last %d bytes of %s are no whole record, as after a crash in the middle "
            "of a write; cut, and kept in %s",
            size,
            self._segment.path,
            path,
        )

    def _set_aside(self, file: BinaryIO, damage: Damage) -> None:
        path = self._save(file, damage, "damaged")
        if path is None:
            return
        self._found.damaged.append(path)
        _logger.error(
            "journal: bytes %d to %d of %s are damaged; set aside as %s, and read on behind them",
            damage.begin,
            damage.end,
            self._segment.path,
            path,
        )

    def _save(self, file: BinaryIO, damage: Damage, kind: str) -> Path | None:
        """The damaged bytes as a file; None if they were saved by an earlier start."""
        file.seek(damage.begin)
        return save_damaged(
            self._disk,
            self._segment,
            damage.begin,
            file.read(damage.end - damage.begin),
            kind,
        )


def save_damaged(
    disk: Disk, segment: Segment, offset: int, data: bytes, kind: str = "damaged"
) -> Path | None:
    """Keep bytes of a segment in `damaged/`; None if they are there already."""
    folder = segment.path.parent / "damaged"
    folder.mkdir(exist_ok=True)
    path = folder / f"{segment.number:08}-{offset}.{kind}"
    if path.exists() and path.read_bytes() == data:
        return None
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    disk.sync_folder(folder)
    disk.sync_folder(folder.parent)
    return path
