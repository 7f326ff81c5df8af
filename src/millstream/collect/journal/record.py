"""The format of a journal record.

    mark 4 │ length 4 │ kind 1 │ sequence 8 │ CRC-32C 4 │ payload

Little endian. The CRC covers everything before it and the payload. The mark is random and the same
for all records of one segment. A reader searches for it after a damaged record. No sender knows it,
so bytes of a payload cannot pass for a record.
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
    """The kind of a record. Other kinds than entries have the sequence number of the last entry."""

    ENTRY = 1
    ENTRY_WITH_BOOKMARK = 2
    SETTLED = 3  # all entries up to a sequence number are settled
    BEGIN = 4  # a SegmentHeader


ENTRIES = (RecordKind.ENTRY, RecordKind.ENTRY_WITH_BOOKMARK)


class SegmentHeader(msgspec.Struct, array_like=True, frozen=True):
    """A segment's first record: what must survive when older segments are deleted."""

    identity: str
    start: int
    settled: int  # all entries up to this sequence number are settled
    previous: int  # the number of the segment before; 0: none
    previous_bytes: int  # its valid size; what follows was never acknowledged
    bookmarks: dict[str, bytes]


class JournalRecord(NamedTuple):
    """A record as it was read."""

    kind: int
    sequence: int
    offset: int
    payload: bytes


def encode(mark: bytes, kind: RecordKind, sequence: int, *payload: bytes) -> list[bytes]:
    """A record in pieces, to be written one after the other; the payload may be in pieces too."""
    front = _FRONT.pack(mark, sum(map(len, payload)), kind, sequence)
    crc: int = google_crc32c.value(front)
    for piece in payload:
        crc = google_crc32c.extend(crc, piece)
    return [front, _CRC.pack(crc), *payload]


def length_at(buffer: bytes, at: int, mark: bytes) -> int:
    """The payload length in the header at an offset; -1 if there is no header."""
    if not buffer.startswith(mark, at) or len(buffer) < at + HEADER:
        return -1
    return int.from_bytes(buffer[at + 4 : at + 8], "little")


def decode(buffer: bytes, at: int, mark: bytes) -> tuple[int, int, bytes] | None:
    """Kind, sequence number and payload of the record at an offset; None if it is not valid."""
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
    """Whether bytes at the end of a segment are the start of an unfinished write.

    A killed process leaves a valid prefix. A machine that lost power may also leave out whole
    sectors, which read as zeros. All other damage is in data that was durable and acknowledged.
    """
    if data.endswith(_ZEROS) or _SECTOR in data or len(data) < HEADER:
        return True
    length = length_at(data, 0, mark)
    is_next = sequence - 1 <= int.from_bytes(data[9:FRONT], "little") <= sequence
    return length > len(data) - HEADER and is_next


def entries_in(data: bytes, mark: bytes) -> Iterator[tuple[int, int]]:
    """The probable start and end of the entries in damaged bytes, by what is left of their headers.

    Bytes without a mark at the start belong to a record with a damaged header.
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
    """The bytes before the payload of an entry with a bookmark."""
    name = source.encode()
    return _NAMES.pack(len(name), len(bookmark)) + name + bookmark


def split_bookmark(payload: bytes) -> tuple[str, bytes, bytes]:
    """The source, the bookmark and the entry's own payload."""
    name, mark = _NAMES.unpack_from(payload)
    begin = _NAMES.size
    middle, end = begin + name, begin + name + mark
    return payload[begin:middle].decode(), payload[middle:end], payload[end:]
