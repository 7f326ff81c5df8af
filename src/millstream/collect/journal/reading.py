"""Reading entries back from their places in the segments."""

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
_GAP = 4096  # bytes of settled entries between two others: one read is cheaper than two
_log = logging.getLogger(__name__)


class EntryLocation(NamedTuple):
    """Where an entry is."""

    segment: Segment
    sequence: int
    offset: int
    length: int  # of the payload

    @property
    def end(self) -> int:
        return self.offset + HEADER + self.length


def read_places(
    places: Sequence[EntryLocation], disk: Disk
) -> tuple[list[tuple[int, bytes]], list[DamagedPiece]]:
    """Sequence and payload of the entries there, and those that are damaged.

    Blocks. A segment that is gone was settled meanwhile.
    """
    entries: list[tuple[int, bytes]] = []
    damaged: list[DamagedPiece] = []
    for segment, here in groupby(places, key=lambda place: place.segment):
        try:
            descriptor = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            for run in _runs(list(here)):
                begin = run[0].offset
                data = os.pread(descriptor, run[-1].end - begin, begin)
                for place in run:
                    payload = _payload(data, begin, place)
                    if payload is None:
                        rest = data[place.offset - begin : place.end - begin]
                        damaged.append(_set_aside(place, rest, disk))
                    else:
                        entries.append((place.sequence, payload))
        finally:
            os.close(descriptor)
    return entries, damaged


def _runs(places: list[EntryLocation]) -> Iterator[list[EntryLocation]]:
    """Places that are read together."""
    run: list[EntryLocation] = []
    for place in places:
        if run and (place.offset - run[-1].end > _GAP or place.end - run[0].offset > _PIECE):
            yield run
            run = []
        run.append(place)
    yield run


def _payload(data: bytes, begin: int, place: EntryLocation) -> bytes | None:
    found = decode(data, place.offset - begin, place.segment.mark)
    if found is None or found[1] != place.sequence:
        return None
    kind, _, payload = found
    return split_bookmark(payload)[2] if kind == RecordKind.ENTRY_WITH_BOOKMARK else payload


def _set_aside(place: EntryLocation, data: bytes, disk: Disk) -> DamagedPiece:
    path = save_damaged(disk, place.segment, place.offset, data)
    _log.error(
        "journal: entry %d, at byte %d of %s, is damaged and lost; set aside as %s; see "
        "`millstream failed list`",
        place.sequence,
        place.offset,
        place.segment.path,
        path,
    )
    damaged = DamagedPiece(
        place.segment.number,
        place.offset,
        len(data),
        checksum_of(data),
        place.segment.mark.hex(),
        first=place.sequence,
        entries=1,
        reason=f"journal segment {place.segment.path.name}: bytes {place.offset:,} to "
        f"{place.end:,} are damaged",
        found_at=now_ms(),
    )
    DamageStore(place.segment.path.parent / "damaged").note(damaged)
    return damaged
