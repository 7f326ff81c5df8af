"""A view in memory: the newest row per key, or the newest rows of a view without key.

Spark's Kafka sink repeats records after a crash, older versions first. Each row has its version,
so that a repeat is recognised: `_revision` grows with every event of a group; `_position` names the
source record of a row that is no aggregate. A row that is not newer than the row in the table is
ignored, so no number goes backwards. See `values.row_version` for the states of windows' rows: a
final row that changes becomes corrected.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from decimal import Decimal
from typing import Any, Literal

import msgspec

from millstream.store.views.ring import Offsets, Ring, Row, ViewChange
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

# How long a deleted row's version is remembered, in the log's time so that all servers agree. A
# restarted query repeats its records within that time.
DELETED_MS = 6 * 3_600_000
MAX_RANGES = 100_000

Numbers = Literal["float", "decimal"]
_check_key = msgspec.json.Decoder(list[Any]).decode


class OffsetSet:
    """Offsets of a partition, as ranges."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def add(self, offset: int) -> int:
        """Add `offset`. If the set is full, forget old ranges and return where the rest begins."""
        if self.ends and self.ends[-1] == offset:
            self.ends[-1] = offset + 1
            return 0
        self.starts.append(offset)
        self.ends.append(offset + 1)
        if len(self.starts) <= MAX_RANGES:
            return 0
        complete_from = self.ends[MAX_RANGES // 10]
        del self.starts[: MAX_RANGES // 10], self.ends[: MAX_RANGES // 10]
        return complete_from

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self.starts, offset) - 1
        return at >= 0 and offset < self.ends[at]


class ViewTable:
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
        self.stateful = keyed and stateful  # rows have a state, even if their records have none
        self.rows: dict[str, Row] = {}  # of a view with key: the key as JSON → row
        self.newest: deque[Row] = deque(maxlen=newest)  # of a view without key
        self.ring = Ring(recent)
        self.unreadable = 0
        # By partition: records that changed nothing, and records that are corrections although
        # they do not say so. A replay of the log cannot find out by itself.
        self.ignored: dict[int, OffsetSet] = {}
        self.corrected: dict[int, OffsetSet] = {}
        self.replayable_from: dict[int, int] = {}  # both sets are complete from this offset on
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
        """Start at `offset`: records before it are not read."""
        self._advance(partition, offset - 1)
        self.ring.start_at(partition, offset)

    def apply(
        self, partition: int, offset: int, timestamp: int, key: bytes | None, value: bytes | None
    ) -> ViewChange | None:
        """Apply a record; its change, or None if it is a repeat, too old or unreadable."""
        self._advance(partition, offset)
        self._newest_timestamp = max(self._newest_timestamp, timestamp)
        try:
            row = None if value is None else self.decode(value)
            name = self._key(key) if self.keyed else None
        except ValueError:  # msgspec.DecodeError and UnicodeDecodeError are ValueErrors
            self.unreadable += 1
            self._remember(self.ignored, partition, offset)
            return None
        if name is None:
            changed, before = row is not None and self._append(row), None
        else:
            own_state = None if row is None else row.get(STATE)
            changed, before = self._replace(name, row)
            if changed and row is not None and row.get(STATE) == "corrected" != own_state:
                self._remember(self.corrected, partition, offset)
        if not changed:
            self._remember(self.ignored, partition, offset)
            return None
        change = ViewChange(name, row, before, partition, offset, self._offsets, timestamp)
        self.ring.append(change)
        return change

    def is_ignored(self, partition: int, offset: int) -> bool:
        """Whether the record at `offset` changed nothing when it was applied."""
        ignored = self.ignored.get(partition)
        return ignored is not None and offset in ignored

    def read_again(self, partition: int, offset: int, value: bytes) -> Row:
        """Decode the row of a record that was applied before, with the state that it had then."""
        row: Row = self.decode(value)
        if self.stateful:
            corrected = self.corrected.get(partition)
            if corrected is not None and offset in corrected:
                row[STATE] = "corrected"
            else:
                row.setdefault(STATE, STATES[0])
        return row

    def _key(self, key: bytes | None) -> str:
        name = (key or b"null").decode()
        if name not in self.rows:  # clients get it as it is, so it must be JSON
            _check_key(name)
        return name

    def _replace(self, key: str, row: Row | None) -> tuple[bool, Row | None]:
        held = self.rows.get(key)
        if row is None:
            if held is None:
                return False, None
            del self.rows[key]
            self._remember_deleted(key, held)
            return True, held
        version, old = version_of(row), None if held is None else version_of(held)
        if row.get(KIND) == RETRACTION:
            # The row stays: its replacement comes next.
            if self.stateful and held is not None:
                row[STATE] = held[STATE]
            return version == old, held
        if old is None and (deleted := self._deleted.get(key)) is not None:
            old = deleted[0]
        if old is not None:
            following = version_after(version, old)
            if following is None:
                return False, None
            version = following
        self._deleted.pop(key, None)
        if self.stateful:
            row[STATE] = STATES[version[-2]]
        self.rows[key] = row
        return True, held

    def _append(self, row: Row) -> bool:
        version = version_of(row)
        if has_position(version):
            # Rows of one source partition come in one partition of the view, in order.
            source = (str(version[0]), int(version[1]))
            if source in self._seen and not is_newer(version, self._seen[source]):
                return False
            self._seen[source] = version
        self.newest.append(row)
        return True

    def _remember_deleted(self, key: str, row: Row) -> None:
        version = version_of(row)
        if not is_known(version):
            return
        self._deleted[key] = (version, self._newest_timestamp)
        self._deleted.move_to_end(key)
        while self._deleted:
            oldest = next(iter(self._deleted))
            if self._deleted[oldest][1] + DELETED_MS >= self._newest_timestamp:
                break
            self._deleted.popitem(last=False)

    def _remember(self, sets: dict[int, OffsetSet], partition: int, offset: int) -> None:
        complete_from = sets.setdefault(partition, OffsetSet()).add(offset)
        if complete_from:
            self.replayable_from[partition] = max(
                complete_from, self.replayable_from.get(partition, 0)
            )

    def _advance(self, partition: int, offset: int) -> None:
        held = self._offsets
        if partition >= len(held):
            held += (0,) * (partition + 1 - len(held))
        self._offsets = (*held[:partition], offset + 1, *held[partition + 1 :])
