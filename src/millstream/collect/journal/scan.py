"""Reads a segment from its start, in pieces, past damaged bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from millstream.collect.journal.record import (
    ENTRIES,
    HEADER,
    JournalRecord,
    RecordKind,
    decode,
    length_at,
)
from millstream.collect.journal.segment import Segment

_PIECE = 1 << 20
_KINDS = frozenset(RecordKind)


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Bytes that are no valid record."""

    begin: int
    end: int


class Scanner:
    """The records of a segment up to `end`, in order. Holds one piece of the file in memory."""

    def __init__(self, file: BinaryIO, segment: Segment, end: int, before: int | None) -> None:
        self._file = file
        self._mark = segment.mark
        self._end = end
        self._before = before  # the next segment's first sequence number
        self._last = segment.first - 1
        self._buffer, self._base = b"", 0  # a piece of the file, and its offset

    def __iter__(self) -> Iterator[JournalRecord | DamagedRange]:
        at = 0
        while at < self._end:
            record = self._record_at(at, room=0)
            if record is None:
                begin, at = at, self._next_mark(at + 1)
                while at < self._end and not (record := self._record_at(at, room=at - begin)):
                    at = self._next_mark(at + 1)
                yield DamagedRange(begin, at)
                if record is None:
                    return
            self._last = record.sequence  # of any kind: it also counts damaged entries before it
            yield record
            at += HEADER + len(record.payload)

    def _record_at(self, at: int, room: int) -> JournalRecord | None:
        """The record at an offset, if it is valid and can follow after `room` damaged bytes."""
        self._load(at, HEADER)
        length = length_at(self._buffer, at - self._base, self._mark)
        if length < 0 or at + HEADER + length > self._end:
            return None
        self._load(at, HEADER + length)
        found = decode(self._buffer, at - self._base, self._mark)
        if found is None:
            return None
        kind, sequence, payload = found
        lowest = self._last + 1 if kind in ENTRIES else self._last
        if kind not in _KINDS or not lowest <= sequence <= lowest + room // HEADER:
            return None
        if kind in ENTRIES and self._before is not None and sequence >= self._before:
            return None
        return JournalRecord(kind, sequence, at, payload)

    def _next_mark(self, at: int) -> int:
        """The offset of the next mark from here on; the end if there is none."""
        while at < self._end:
            self._load(at, len(self._mark))
            found = self._buffer.find(self._mark, at - self._base)
            if found >= 0:
                return min(self._base + found, self._end)
            at = max(at + 1, self._base + len(self._buffer) - len(self._mark) + 1)
        return self._end

    def _load(self, at: int, size: int) -> None:
        """Load bytes from an offset into memory, as far as the file has them."""
        if self._base <= at and at + size <= self._base + len(self._buffer):
            return
        self._file.seek(at)
        self._buffer = self._file.read(min(max(size, _PIECE), self._end - at))
        self._base = at
