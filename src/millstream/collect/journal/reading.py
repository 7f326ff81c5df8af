"""Reads entries back from their segments."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from millstream.collect.journal.damage import DamagedPiece, DamageStore, checksum_of
from millstream.collect.journal.disk import Disk
from millstream.collect.journal.record import HEADER, RecordKind, decode, split_bookmark
from millstream.collect.journal.recovery import save_damaged
from millstream.collect.journal.segment import Segment
from millstream.values.clock import now_ms

_PIECE = 1 << 20
_GAP = 4096  # bytes between two entries: one larger read is cheaper than two
_log = logging.getLogger(__name__)


class EntryLocation(NamedTuple):
    """The location of an entry in a segment."""

    segment: Segment
    sequence: int
    offset: int
    length: int  # of the payload

    @property
    def end(self) -> int:
        return self.offset + HEADER + self.length


def read_entries(
    locations: Sequence[EntryLocation], disk: Disk
) -> tuple[list[tuple[int, bytes]], list[DamagedPiece]]:
    """Sequence number and payload of each entry, and the damaged entries.

    Blocks. A segment that no longer exists was settled meanwhile.
    """
    entries: list[tuple[int, bytes]] = []
    damaged: list[DamagedPiece] = []
    for segment, here in groupby(locations, key=lambda location: location.segment):
        try:
            descriptor = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            for run in _runs(list(here)):
                begin = run[0].offset
                data = os.pread(descriptor, run[-1].end - begin, begin)
                for location in run:
                    payload = _payload(data, begin, location)
                    if payload is None:
                        rest = data[location.offset - begin : location.end - begin]
                        damaged.append(_set_aside(location, rest, disk))
                    else:
                        entries.append((location.sequence, payload))
        finally:
            os.close(descriptor)
    return entries, damaged


def _runs(locations: list[EntryLocation]) -> Iterator[list[EntryLocation]]:
    """Groups of locations that are read together."""
    run: list[EntryLocation] = []
    for location in locations:
        if run and (location.offset - run[-1].end > _GAP or location.end - run[0].offset > _PIECE):
            yield run
            run = []
        run.append(location)
    yield run


def _payload(data: bytes, begin: int, location: EntryLocation) -> bytes | None:
    found = decode(data, location.offset - begin, location.segment.mark)
    if found is None or found[1] != location.sequence:
        return None
    kind, _, payload = found
    return split_bookmark(payload)[2] if kind == RecordKind.ENTRY_WITH_BOOKMARK else payload


def _set_aside(location: EntryLocation, data: bytes, disk: Disk) -> DamagedPiece:
    path = save_damaged(disk, location.segment, location.offset, data)
    _log.error(
        "journal: entry %d, at byte %d of %s, is damaged and lost; set aside as %s; see "
        "`millstream failed list`",
        location.sequence,
        location.offset,
        location.segment.path,
        path,
    )
    damaged = DamagedPiece(
        location.segment.number,
        location.offset,
        len(data),
        checksum_of(data),
        location.segment.mark.hex(),
        first=location.sequence,
        entries=1,
        reason=f"journal segment {location.segment.path.name}: bytes {location.offset:,} to "
        f"{location.end:,} are damaged",
        found_at=now_ms(),
    )
    DamageStore(location.segment.path.parent / "damaged").note(damaged)
    return damaged
