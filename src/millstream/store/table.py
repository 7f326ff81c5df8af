"""A view in memory: the newest row per key, or the newest rows of a view without key.

Spark's Kafka sink repeats records after a crash, with older numbers first. Each row carries what
`analyze` knows about its age, so that a repeat is recognised: `_revision` grows with every event
of a group; `_position` names the source record of a row that is no aggregate. What is no newer than
what is held is ignored, so no number goes backwards.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from decimal import Decimal
from typing import Any, Literal

import msgspec

from millstream.store.ring import Change, Offsets, Ring, Row

LINEAGE = frozenset({"_revision", "_position", "_received_at", "_event_time", "_returned"})
# How long a deleted key's age is remembered, in the log's own time so that all servers agree:
# longer than a restarted query needs to replay past what it had written.
DELETED_MS = 6 * 3_600_000
MAX_IGNORED = 100_000

Mark = tuple[int, int] | tuple[str, int, int, int, int]
Numbers = Literal["float", "decimal"]


class Ignored:
    """Which offsets of a partition changed nothing; a replay must leave them out too."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def add(self, offset: int) -> int:
        """Note `offset`; the oldest offset from which the notes are complete, if that moved."""
        if self.ends and self.ends[-1] == offset:
            self.ends[-1] = offset + 1
            return 0
        self.starts.append(offset)
        self.ends.append(offset + 1)
        if len(self.starts) <= MAX_IGNORED:
            return 0
        complete_from = self.ends[MAX_IGNORED // 10]
        del self.starts[: MAX_IGNORED // 10], self.ends[: MAX_IGNORED // 10]
        return complete_from

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self.starts, offset) - 1
        return at >= 0 and offset < self.ends[at]


class Table:
    """Applies result records in the order of each partition. Not thread-safe; never blocks."""

    def __init__(
        self, *, keyed: bool, recent: int = 10_000, newest: int = 10_000, numbers: Numbers = "float"
    ) -> None:
        self.keyed = keyed
        self.rows: dict[str, Row] = {}  # of a view with key: JSON text of the key → row
        self.newest: deque[Row] = deque(maxlen=newest)  # of a view without
        self.ring = Ring(recent)
        self.unreadable = 0
        self.ignored: dict[int, Ignored] = {}
        self.replayable: dict[int, int] = {}  # before this offset `ignored` knows too little
        self._offsets: Offsets = ()
        self._deleted: dict[str, tuple[Mark, int]] = {}
        self._seen: dict[tuple[str, int], Mark] = {}  # per (source, partition) of a keyless view
        self._newest_timestamp = 0
        self.decode = msgspec.json.Decoder(
            dict[str, Any], float_hook=Decimal if numbers == "decimal" else None
        ).decode

    @property
    def offsets(self) -> Offsets:
        """The next offset to read, by partition."""
        return self._offsets

    def __len__(self) -> int:
        return len(self.rows) if self.keyed else len(self.newest)

    def start_at(self, partition: int, offset: int) -> None:
        """Say that the log holds (or that we read) nothing before `offset`."""
        self._advance(partition, offset - 1)
        self.ring.start_at(partition, offset)

    def apply(
        self, partition: int, offset: int, timestamp: int, key: bytes | None, value: bytes | None
    ) -> Change | None:
        """The change that a record makes; None if it is a repeat, too old or unreadable."""
        self._advance(partition, offset)
        self._newest_timestamp = max(self._newest_timestamp, timestamp)
        try:
            row = None if value is None else self.decode(value)
            name = self._key(key) if self.keyed else None
        except ValueError:  # msgspec.DecodeError and UnicodeDecodeError are ValueErrors
            self.unreadable += 1
            self._ignore(partition, offset)
            return None
        if name is None:
            changed, before = row is not None and self._append(row), None
        else:
            changed, before = self._replace(name, row)
        if not changed:
            self._ignore(partition, offset)
            return None
        change = Change(name, row, before, partition, offset, self._offsets, timestamp)
        self.ring.append(change)
        return change

    def is_ignored(self, partition: int, offset: int) -> bool:
        """Whether the record at `offset` changed nothing when it was applied."""
        noted = self.ignored.get(partition)
        return noted is not None and offset in noted

    def _key(self, key: bytes | None) -> str:
        name = (key or b"null").decode()
        if name not in self.rows:  # it is given to clients as it is, so it must be JSON
            msgspec.json.decode(name, type=list[Any])
        return name

    def _replace(self, key: str, row: Row | None) -> tuple[bool, Row | None]:
        held = self.rows.get(key)
        if row is None:
            if held is None:
                return False, None
            del self.rows[key]
            self._remember_deleted(key, held)
            return True, held
        mark = _mark(row)
        if held is not None:
            if not _newer(mark, _mark(held)):
                return False, None
        elif (gone := self._deleted.get(key)) is not None:
            if not _newer(mark, gone[0]):
                return False, None
            del self._deleted[key]
        self.rows[key] = row
        return True, held

    def _append(self, row: Row) -> bool:
        mark = _mark(row)
        if mark is not None and len(mark) == 5:
            # Every row of one source partition comes through one partition of the view, in order.
            source = (str(mark[0]), int(mark[1]))
            if not _newer(mark, self._seen.get(source)):
                return False
            self._seen[source] = mark
        self.newest.append(row)
        return True

    def _remember_deleted(self, key: str, row: Row) -> None:
        mark = _mark(row)
        if mark is None:
            return
        self._deleted.pop(key, None)  # to the end: the dict's order is the order of forgetting
        self._deleted[key] = (mark, self._newest_timestamp)
        while self._deleted:
            oldest = next(iter(self._deleted))
            if self._deleted[oldest][1] + DELETED_MS >= self._newest_timestamp:
                break
            del self._deleted[oldest]

    def _ignore(self, partition: int, offset: int) -> None:
        complete_from = self.ignored.setdefault(partition, Ignored()).add(offset)
        if complete_from:
            self.replayable[partition] = complete_from

    def _advance(self, partition: int, offset: int) -> None:
        held = self._offsets
        if partition >= len(held):
            held += (0,) * (partition + 1 - len(held))
        self._offsets = (*held[:partition], offset + 1, *held[partition + 1 :])


def _mark(row: Row) -> Mark | None:
    """How new a row is; None if it does not say."""
    revision = row.get("_revision")
    # A row that the tombstone of an older one overtook comes again, as new as it was but for this.
    returned = row.get("_returned", 0)
    returned = returned if type(returned) is int else 0
    if type(revision) is int:
        return (revision, returned)
    position = row.get("_position")
    if isinstance(position, dict):
        offset, number = position.get("offset"), position.get("row", 0)
        partition = position.get("partition")
        if type(offset) is int and type(number) is int and type(partition) is int:
            return (str(position.get("source", "")), partition, offset, number, returned)
    return None


def _newer(mark: Mark | None, held: Mark | None) -> bool:
    """Whether a row may take the held one's place; what cannot be compared may."""
    if mark is None or held is None or len(mark) != len(held):
        return True
    if len(mark) == 5 and mark[:2] != held[:2]:
        return True
    return mark > held
