"""The store of damaged pieces of segments.

    <segment>-<offset>.damaged    the bytes, as far as the disk can read them
    <segment>-<offset>.json       a description; it stays when the bytes are dropped
    <segment>-<offset>.cut        the torn end of a write that was never acknowledged: no loss

The journal writes these files. Commands read them while the collector runs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import google_crc32c
import msgspec

from millstream.collect.journal.disk import sync_folder, write_durably
from millstream.values.clock import now_ms
from millstream.values.report import JournalDamage

_NAME = ".json"
_COARSE_NS = 1_000_000_000  # two changes within this time may have the same timestamp
_BYTES = ".damaged"
EARLIER = "an earlier version set these bytes aside without a description"


class DamagedPiece(msgspec.Struct, frozen=True, omit_defaults=True):
    """A damaged piece of a segment. If `entries` is 0, nothing was lost."""

    segment: int
    offset: int
    size: int = 0  # bytes
    checksum: int = 0  # of the damaged bytes
    mark: str = ""  # at the start of each record of that segment; hexadecimal
    first: int = 0  # the sequence number of the first lost entry; 0: unknown
    entries: int = 0  # the number of accepted entries that are lost
    reason: str = ""
    found_at: int = 0  # milliseconds since the epoch
    received_at: int = 0  # of the oldest entry, as far as it can be read
    events: dict[str, int] | None = None  # per stream; None: not counted yet
    unread: int = 0  # entries whose events cannot be counted
    searched: bool = False  # whether the log was searched for the events
    acknowledged_at: int = 0  # when an operator dropped it; 0: not yet

    @property
    def name(self) -> str:
        return f"{self.segment:08}-{self.offset}"

    @property
    def known_events(self) -> int:
        return sum((self.events or {}).values())

    def holds(self, sequence: int) -> bool:
        """Whether the entry with that sequence number is lost."""
        return self.first <= sequence < self.first + self.entries


class DamageStore:
    """The folder of damaged pieces. Calls block; changes are durable when they return."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: tuple[int, list[DamagedPiece]] = (-1, [])

    def pieces(self) -> list[DamagedPiece]:
        """All damaged pieces ever found, in order; read again only when the folder has changed."""
        try:
            changed = self.folder.stat().st_mtime_ns
        except FileNotFoundError:
            return []
        if changed != self._seen[0] or time.time_ns() - changed < _COARSE_NS:
            known = {path.stem: path for path in self.folder.glob(f"*{_NAME}")}
            found = [self._read(path) for path in known.values()]
            bare = (path for path in self.folder.glob(f"*{_BYTES}") if path.stem not in known)
            found += [_without_description(path) for path in bare]
            pieces = sorted(filter(None, found), key=lambda each: (each.segment, each.offset))
            self._seen = (changed, pieces)
        return self._seen[1]

    def lost(self) -> list[DamagedPiece]:
        """The pieces with lost entries, acknowledged or not."""
        return [each for each in self.pieces() if each.entries]

    def find(self, sequence: int) -> DamagedPiece | None:
        """The piece that held the entry with that sequence number; None if it is not lost."""
        return next((each for each in self.lost() if each.holds(sequence)), None)

    def data(self, one: DamagedPiece) -> bytes:
        """The bytes of a piece; empty if they were dropped."""
        try:
            return (self.folder / f"{one.name}{_BYTES}").read_bytes()
        except FileNotFoundError:
            return b""

    def put(self, one: DamagedPiece) -> None:
        """Write the description of a piece."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        write_durably(self.folder / f"{one.name}{_NAME}", msgspec.json.encode(one))

    def note(self, one: DamagedPiece) -> bool:
        """As `put`, unless the same piece is stored; whether it was written."""
        before = self._read(self.folder / f"{one.name}{_NAME}")
        if before is not None and (before.size, before.checksum) == (one.size, one.checksum):
            return False
        self.put(one)
        return True

    def acknowledge(self, names: Iterable[str]) -> int:
        """Drop the bytes of pieces, and keep their descriptions; how many were dropped."""
        chosen, count = set(names), 0
        for one in self.pieces():
            if one.name in chosen and not one.acknowledged_at:
                self.put(msgspec.structs.replace(one, acknowledged_at=now_ms()))
                (self.folder / f"{one.name}{_BYTES}").unlink(missing_ok=True)
                count += 1
        if count:
            sync_folder(self.folder)
        return count

    def counts(self) -> JournalDamage | None:
        """The counts for the collector's report; None if nothing was ever lost."""
        lost = self.lost()
        if not lost:
            return None
        waiting = [each for each in lost if not each.acknowledged_at]
        streams: Counter[str] = Counter()
        for each in lost:
            streams.update(each.events or {})
        return JournalDamage(
            entries=sum(each.entries for each in waiting),
            events=sum(each.known_events for each in waiting),
            bytes=sum(each.size for each in waiting),
            unread=sum(each.unread for each in waiting),
            acknowledged=sum(each.entries for each in lost if each.acknowledged_at),
            streams=dict(streams),
        )

    def _read(self, path: Path) -> DamagedPiece | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=DamagedPiece)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # The description is damaged too. The loss must still be reported.
            return _without_description(path)


def checksum_of(data: bytes) -> int:
    found: int = google_crc32c.value(data)
    return found


def _without_description(path: Path) -> DamagedPiece | None:
    segment, _, offset = path.stem.partition("-")
    if not (segment.isdecimal() and offset.isdecimal()):
        return None
    data = path.with_suffix(_BYTES)
    size = data.stat().st_size if data.exists() else 0
    found_at = path.stat().st_mtime_ns // 1_000_000
    return DamagedPiece(
        int(segment), int(offset), size, entries=1, unread=1, reason=EARLIER, found_at=found_at
    )
