"""A record of the journal: how it is written, and whether bytes are one.

    mark 4 │ length 4 │ kind 1 │ sequence 8 │ CRC-32C 4 │ payload

Little endian. The CRC covers everything before it and the payload. The mark is random, the same for
all records of a segment and no other's: it is what a reader looks for behind a damaged record, and
because no sender knows it, bytes of a payload cannot pass for a record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

import google_crc32c
import msgspec

_FRONT = struct.Struct("<4sIBQ")
_CRC = struct.Struct("<I")
_NAMES = struct.Struct("<HI")
MARK = 4  # bytes
FRONT = _FRONT.size
HEADER = FRONT + _CRC.size
_SECTOR = bytes(512)
_ZEROS = bytes(16)


class RecordKind(IntEnum):
    """What a record is. The sequence of all but entries is that of the last entry before them."""

    ENTRY = 1
    ENTRY_WITH_BOOKMARK = 2
    SETTLED = 3  # all entries up to a sequence are in Kafka
    BEGIN = 4  # what a segment must know of those before it


ENTRIES = (RecordKind.ENTRY, RecordKind.ENTRY_WITH_BOOKMARK)


class SegmentHeader(msgspec.Struct, array_like=True, frozen=True):
    """A segment's first record: all that must outlive the segments before it."""

    identity: str
    start: int
    settled: int  # everything up to this sequence is settled
    previous: int  # the number of the segment before; 0: there was none
    previous_bytes: int  # it is valid up to here; what follows was never acknowledged
    bookmarks: dict[str, bytes]


class JournalRecord(NamedTuple):
    """A record as it was read."""

    kind: int
    sequence: int
    offset: int
    payload: bytes


def encode(mark: bytes, kind: RecordKind, sequence: int, *payload: bytes) -> list[bytes]:
    """A record in pieces to write one after the other; the payload may come in pieces too."""
    front = _FRONT.pack(mark, sum(map(len, payload)), kind, sequence)
    crc: int = google_crc32c.value(front)
    for piece in payload:
        crc = google_crc32c.extend(crc, piece)
    return [front, _CRC.pack(crc), *payload]


def length_at(buffer: bytes, at: int, mark: bytes) -> int:
    """The payload's length that the header there tells, or -1 if there is none."""
    if not buffer.startswith(mark, at) or len(buffer) < at + HEADER:
        return -1
    return int.from_bytes(buffer[at + 4 : at + 8], "little")


def decode(buffer: bytes, at: int, mark: bytes) -> tuple[int, int, bytes] | None:
    """Kind, sequence and payload of the record there; None if there is no whole, sound one."""
    length = length_at(buffer, at, mark)
    begin = at + HEADER
    if length < 0 or begin + length > len(buffer):
        return None
    front, payload = buffer[at : at + FRONT], buffer[begin : begin + length]
    crc: int = google_crc32c.extend(google_crc32c.value(front), payload)
    if crc != _CRC.unpack_from(buffer, at + FRONT)[0]:
        return None
    return front[8], int.from_bytes(front[9:], "little"), payload


def is_torn(data: bytes, mark: bytes, sequence: int) -> bool:
    """Whether bytes at the end of a segment are the beginning of a write that was not finished.

    What a killed process wrote is whole up to some byte; a machine that lost power may have left
    out whole sectors too, which then read as zeros. All else was on disk once, and was answered.
    """
    if data.endswith(_ZEROS) or _SECTOR in data or len(data) < HEADER:
        return True
    length = length_at(data, 0, mark)
    is_next = sequence - 1 <= int.from_bytes(data[9:FRONT], "little") <= sequence
    return length > len(data) - HEADER and is_next


def entries_in(data: bytes, mark: bytes) -> Iterator[tuple[int, int]]:
    """Where the entries in damaged bytes seem to begin and end, by what is left of their headers.

    Bytes without a mark at their beginning belong to a record whose header is damaged.
    """
    if not data:
        return
    places = sorted({0, *_marks(data, mark)})
    for begin, end in zip(places, [*places[1:], len(data)], strict=True):
        has_header = data.startswith(mark, begin) and end - begin >= FRONT
        if not has_header or data[begin + 8] not in (RecordKind.SETTLED, RecordKind.BEGIN):
            yield begin, end


def _marks(data: bytes, mark: bytes) -> Iterator[int]:
    at = data.find(mark) if mark else -1
    while at >= 0:
        yield at
        at = data.find(mark, at + 1)


def bookmark_piece(source: str, bookmark: bytes) -> bytes:
    """What stands before the payload of an entry with a bookmark."""
    name = source.encode()
    return _NAMES.pack(len(name), len(bookmark)) + name + bookmark


def split_bookmark(payload: bytes) -> tuple[str, bytes, bytes]:
    """Source, bookmark and the entry's own payload."""
    name, mark = _NAMES.unpack_from(payload)
    begin = _NAMES.size
    middle, end = begin + name, begin + name + mark
    return payload[begin:middle].decode(), payload[middle:end], payload[end:]
