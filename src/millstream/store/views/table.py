"""A view in memory: the newest row per key, or the newest rows of a view without key.

Spark's Kafka sink repeats records after a crash, with older numbers first. Each row carries what
`analyze` knows about its age, so that a repeat is recognised: `_revision` grows with every event
of a group; `_position` names the source record of a row that is no aggregate. What is no newer than
what is held is ignored, so no number goes backwards. See `values.row_version` for the states of
windows' rows: no final one changes here without being called corrected.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from decimal import Decimal
from typing import Any, Literal

import msgspec

from millstream.store.views.ring import Change, Offsets, Ring, Row
from millstream.values.hidden_columns import KIND, STATE
from millstream.values.row_version import (
    RETRACTION,
    STATES,
    RowVersion,
    has_position,
    is_known,
    is_newer,
    version_after,
    version_of,
)

# How long a deleted key's age is remembered, in the log's own time so that all servers agree:
# longer than a restarted query needs to replay past what it had written.
DELETED_MS = 6 * 3_600_000
MAX_NOTED = 100_000

Numbers = Literal["float", "decimal"]


class Noted:
    """Some offsets of a partition: what a replay must know of them, since it cannot tell."""

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
        if len(self.starts) <= MAX_NOTED:
            return 0
        complete_from = self.ends[MAX_NOTED // 10]
        del self.starts[: MAX_NOTED // 10], self.ends[: MAX_NOTED // 10]
        return complete_from

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self.starts, offset) - 1
        return at >= 0 and offset < self.ends[at]


class Table:
    """Applies result records in the order of each partition. Not thread-safe; never blocks."""

    def __init__(
        self,
        *,
        keyed: bool,
        stateful: bool = False,
        recent: int = 10_000,
        newest: int = 10_000,
        numbers: Numbers = "float",
    ) -> None:
        self.keyed = keyed
        self.stateful = keyed and stateful  # rows have a state, whether or not their records tell
        self.rows: dict[str, Row] = {}  # of a view with key: JSON text of the key → row
        self.newest: deque[Row] = deque(maxlen=newest)  # of a view without
        self.ring = Ring(recent)
        self.unreadable = 0
        self.ignored: dict[int, Noted] = {}  # what changed nothing
        self.corrected: dict[int, Noted] = {}  # what is a correction, though it does not say so
        self.replayable_from: dict[int, int] = {}  # before this offset the notes tell too little
        self._offsets: Offsets = ()
        self._deleted: OrderedDict[str, tuple[RowVersion, int]] = OrderedDict()  # oldest first
        # Of a keyless view, per (source, partition).
        self._seen: dict[tuple[str, int], RowVersion] = {}
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
            self._note(self.ignored, partition, offset)
            return None
        if name is None:
            changed, before = row is not None and self._append(row), None
        else:
            said = None if row is None else row.get(STATE)
            changed, before = self._replace(name, row)
            if changed and row is not None and row.get(STATE) == "corrected" != said:
                self._note(self.corrected, partition, offset)
        if not changed:
            self._note(self.ignored, partition, offset)
            return None
        change = Change(name, row, before, partition, offset, self._offsets, timestamp)
        self.ring.append(change)
        return change

    def is_ignored(self, partition: int, offset: int) -> bool:
        """Whether the record at `offset` changed nothing when it was applied."""
        noted = self.ignored.get(partition)
        return noted is not None and offset in noted

    def read_again(self, partition: int, offset: int, value: bytes) -> Row:
        """The row of a record that was applied before, with the state that it had then."""
        row: Row = self.decode(value)
        if self.stateful:
            noted = self.corrected.get(partition)
            if noted is not None and offset in noted:
                row[STATE] = "corrected"
            else:
                row.setdefault(STATE, STATES[0])
        return row

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
        mark, old = version_of(row), None if held is None else version_of(held)
        if row.get(KIND) == RETRACTION:
            # A change, but no other row: that comes next, and is then the newest.
            if self.stateful and held is not None:
                row[STATE] = held[STATE]
            return mark == old, held
        if old is None and (gone := self._deleted.get(key)) is not None:
            old = gone[0]
        if old is not None:
            followed = version_after(mark, old)
            if followed is None:
                return False, None
            mark = followed
        self._deleted.pop(key, None)
        if self.stateful:
            row[STATE] = STATES[mark[-2]]
        self.rows[key] = row
        return True, held

    def _append(self, row: Row) -> bool:
        mark = version_of(row)
        if has_position(mark):
            # Every row of one source partition comes through one partition of the view, in order.
            source = (str(mark[0]), int(mark[1]))
            if source in self._seen and not is_newer(mark, self._seen[source]):
                return False
            self._seen[source] = mark
        self.newest.append(row)
        return True

    def _remember_deleted(self, key: str, row: Row) -> None:
        mark = version_of(row)
        if not is_known(mark):
            return
        self._deleted[key] = (mark, self._newest_timestamp)
        self._deleted.move_to_end(key)
        while self._deleted:
            oldest = next(iter(self._deleted))
            if self._deleted[oldest][1] + DELETED_MS >= self._newest_timestamp:
                break
            self._deleted.popitem(last=False)

    def _note(self, notes: dict[int, Noted], partition: int, offset: int) -> None:
        complete_from = notes.setdefault(partition, Noted()).add(offset)
        if complete_from:
            self.replayable_from[partition] = max(
                complete_from, self.replayable_from.get(partition, 0)
            )

    def _advance(self, partition: int, offset: int) -> None:
        held = self._offsets
        if partition >= len(held):
            held += (0,) * (partition + 1 - len(held))
        self._offsets = (*held[:partition], offset + 1, *held[partition + 1 :])
