"""Read-only access to a journal that another process may be writing to."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from millstream.collect.journal.damage import DamageStore
from millstream.collect.journal.folder import IdentityFile
from millstream.collect.journal.record import (
    JournalRecord,
    RecordKind,
    SegmentHeader,
    split_bookmark,
)
from millstream.collect.journal.scan import Scanner
from millstream.collect.journal.segment import Segment


def read_bookmarks(folder: Path) -> dict[str, bytes]:
    """The newest bookmark of each source in a journal's folder. Blocks; changes nothing.

    Each segment starts with the bookmarks of those before it, so the last readable one suffices.
    """
    found: dict[str, bytes] = {}
    named = (Segment.from_path(path) for path in folder.iterdir())
    segments = sorted((s for s in named if s is not None), key=lambda each: each.number)
    for segment in reversed(segments):
        try:
            bookmarks, is_whole = _read(segment)
        except FileNotFoundError:  # its owner has deleted it: a newer segment exists
            return read_bookmarks(folder)
        found = bookmarks | found
        if is_whole:
            break
    return found


def is_lost(folder: Path, collector: str, sequence: int) -> bool:
    """Whether an accepted entry is lost, because its record in this journal is damaged. Blocks."""
    owner = IdentityFile(folder / "identity").read()
    if owner is None or owner.identity != collector:
        return False
    return DamageStore(folder / "damaged").find(sequence) is not None


def _read(segment: Segment) -> tuple[dict[str, bytes], bool]:
    """A segment's bookmarks, and whether those of older segments are among them."""
    found: dict[str, bytes] = {}
    is_whole = False
    with open(segment.path, "rb") as file:
        # A killed process may have left its last write in the machine's memory only.
        os.fsync(file.fileno())
        for record in Scanner(file, segment, os.fstat(file.fileno()).st_size, None):
            if not isinstance(record, JournalRecord):
                continue
            if record.kind == RecordKind.BEGIN:
                begin = msgspec.msgpack.decode(record.payload, type=SegmentHeader)
                found.update(begin.bookmarks)
                is_whole = True
            elif record.kind == RecordKind.ENTRY_WITH_BOOKMARK:
                source, bookmark, _ = split_bookmark(record.payload)
                found[source] = bookmark
    return found, is_whole
