"""State of a view's rows: provisional, final, corrected, deleted. Without Kafka.

Spark writes rows. We write their states and tombstones into the same topic, and nothing orders the
two writers. So Spark can write a newer row after we read the old one and before we write about it:

- A tombstone names the row that it deletes. If we read it back after a newer row, we write that row
  again, with `_returned` to distinguish it.
- A state is written with its row's revision. If we read it back after a newer row, servers ignore
  it, but log compaction keeps only it. So we write the newer row again, as corrected, because
  the log called an older revision final.

After a crash Spark repeats rows. Servers ignore the repeats, but compaction would keep them and
drop our records. So we write the state again after a repeat.

Compaction may also drop a final row before we have written its correction, if we crash in between.
So before rows become final we commit the watermark, and the offset from which on it applies. A row
without a state in a window that ended by a committed watermark is a correction.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from millstream.analyze.plan import ViewPlan
from millstream.analyze.row_state.row_updates import (
    DELETES,
    CommittedWatermark,
    RestoredRow,
    RowKey,
    StateUpdate,
    Tombstone,
    with_state,
)
from millstream.log.consumer import Partition
from millstream.log.record import Record
from millstream.values.clock import to_ms
from millstream.values.hidden_columns import RECEIVED
from millstream.values.row_version import (
    CORRECTED,
    FINAL,
    PROVISIONAL,
    RowVersion,
    is_known,
    version_after,
    version_of,
)

_CLOCK_SKEW_MS = 60_000  # machines' clocks differ: no row is forgotten sooner than this
_NOTHING = CommittedWatermark(0, 0)


def has_row_states(view: ViewPlan) -> bool:
    """Whether the view's rows become final: it is a table of windows that a watermark passes."""
    ends_by_time = view.window_spec is None or view.window_spec.ends_by_time
    return view.key is not None and view.window is not None and view.has_watermark and ends_by_time


@dataclass(slots=True)
class _Row:
    version: RowVersion
    offset: int  # of its newest record
    first_offset: int  # of its first record, which has no state
    timestamp: int
    value: bytes | None  # while it may have to be written again
    expires: int | None  # milliseconds since the epoch
    window_end: int | None
    spark_wrote: int  # timestamp of the newest record that Spark wrote
    has_state: bool = True  # the newest record of its key has its state
    deleting: int = -1  # the offset that a tombstone not read back yet deletes
    stating: int = -1  # the offset that a state update not read back yet is about
    is_deleted: bool = False
    is_open: bool = False  # waits for the end of its window

    @property
    def stage(self) -> int:
        return int(self.version[-2])


class _Decoded(NamedTuple):
    version: RowVersion
    window_end: int | None

    @property
    def stage(self) -> int:
        return int(self.version[-2])

    def is_same_row(self, held: _Row) -> bool:
        """Whether the record is about the row that is held, whatever its stage."""
        ours, theirs = self.version, held.version
        is_comparable = is_known(ours) or self.stage != PROVISIONAL
        return is_comparable and ours[:-2] == theirs[:-2] and ours[-1] == theirs[-1]


class RowStates:
    """Decides which states and tombstones to write. Not thread-safe; never blocks."""

    def __init__(self, views: Iterable[ViewPlan]) -> None:
        self._views = {view.query_topic: view for view in views}
        self._with_states = {topic for topic, view in self._views.items() if has_row_states(view)}
        self._rows: dict[RowKey, _Row] = {}
        self._expiring: list[tuple[int, RowKey]] = []  # may be too early for a row, never too late
        self._is_expiring: set[RowKey] = set()
        self._restored: dict[RowKey, RestoredRow] = {}
        # Heaps by topic. By window end: provisional rows, and final rows to forget. By the time
        # when Spark wrote them: deleted rows.
        self._open: dict[str, list[tuple[int, RowKey]]] = {topic: [] for topic in self._views}
        self._final: dict[str, list[tuple[int, RowKey]]] = {topic: [] for topic in self._views}
        self._deleted: dict[str, list[tuple[int, RowKey]]] = {topic: [] for topic in self._views}
        self._without_state: set[RowKey] = set()  # rows whose state is to be written
        self._next: dict[Partition, int] = {}
        self._forgotten: dict[str, int] = {}  # topic → latest end of a window not held here
        self.committed: dict[Partition, CommittedWatermark] = {}
        self.received: dict[str, str] = {}  # topic → `_received_at` of the newest row; RFC 3339

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def held_bytes(self) -> int:
        """Size of the encoded rows in memory."""
        return sum(len(row.value) for row in self._rows.values() if row.value is not None)

    def apply(self, record: Record) -> None:
        """Process a record, in the order of its partition."""
        self._next[record.topic, record.partition] = record.offset + 1
        if record.key is None:
            return
        key = RowKey(record.topic, record.partition, record.key)
        held = self._rows.get(key)
        if record.value is None:
            if held is not None:
                self._delete(key, held, record)
            return
        decoded = self._decode(record)
        if decoded is None:
            return
        if held is None:
            self._replace(key, None, record, decoded, self._first_version(record, decoded))
        elif (version := version_after(decoded.version, held.version)) is not None:
            self._replace(key, held, record, decoded, version)
        else:
            self._repeat(key, held, record, decoded)

    def tombstones(self, now: int) -> list[Tombstone]:
        """The tombstones that are due. Each is returned once, unless `retry` asks for it again."""
        due, later = [], []
        while self._expiring and self._expiring[0][0] <= now:
            _, key = heapq.heappop(self._expiring)
            self._is_expiring.discard(key)
            row = self._rows.get(key)
            if row is None or row.expires is None:
                continue
            if row.is_deleted and row.deleting == row.offset:
                continue
            if row.expires <= now and row.deleting != row.offset:
                row.deleting = row.offset
                due.append(Tombstone(key, row.offset, self._final_value(key, row)))
            later.append((max(row.expires, now + 1), key))
        for expires, key in later:
            self._expire_at(expires, key)
        return due

    def _final_value(self, key: RowKey, row: _Row) -> bytes | None:
        """The row as final or corrected, if it was never written so.

        If a view was down for longer than it keeps its rows, they expire at once. So does the
        correction by a very late event. The ledger must see both as final before they are deleted.
        """
        is_written = row.stage != PROVISIONAL and row.has_state
        if is_written or row.value is None or key.topic not in self._with_states:
            return None
        return with_state(row.value, max(row.stage, FINAL), int(row.version[-1]))

    def restored(self) -> list[RestoredRow]:
        """The rows to write again after a tombstone. Each is returned once."""
        restored, self._restored = list(self._restored.values()), {}
        return restored

    def to_commit(self, watermarks: Mapping[str, int]) -> dict[Partition, CommittedWatermark]:
        """What must be committed before `state_updates` with these watermarks may be written."""
        due = {
            topic
            for topic, queue in self._open.items()
            if queue and queue[0][0] <= watermarks.get(topic, 0)
        }
        if not due:
            return {}
        offsets = {at: offset for at, offset in self._next.items() if at[0] in due}
        for key in self._without_state:  # our successor must still find these
            at = (key.topic, key.partition)
            if at in offsets:
                offsets[at] = min(offsets[at], self._rows[key].offset)
        return {
            at: CommittedWatermark(offset, watermarks[at[0]])
            for at, offset in offsets.items()
            if watermarks[at[0]] > self.committed.get(at, _NOTHING).until
        }

    def state_updates(self, watermarks: Mapping[str, int]) -> list[StateUpdate]:
        """The states to write. Each is returned once, unless `retry` asks for it again.

        `watermarks`, by topic, are in milliseconds since the epoch. A window's rows become final
        when the watermark has passed its end and is in `committed` for their partition.
        """
        updates = []
        for topic, queue in self._open.items():
            later = []
            while queue and queue[0][0] <= watermarks.get(topic, 0):
                window_end, key = heapq.heappop(queue)
                row = self._rows.get(key)
                if row is None:
                    continue
                row.is_open = False
                if row.stage != PROVISIONAL or row.is_deleted or row.value is None:
                    continue
                if row.deleting == row.offset:
                    continue
                committed = self.committed.get((key.topic, key.partition))
                if committed is None or committed.until < window_end:
                    later.append(key)
                elif row.stating != row.offset:
                    row.stating = row.offset
                    updates.append(StateUpdate(key, row.offset, with_state(row.value, FINAL)))
            for key in later:
                self._await_window(key, self._rows[key])
        for key in self._without_state:
            row = self._rows[key]
            if row.value is not None and row.offset not in (row.stating, row.deleting):
                row.stating = row.offset
                value = with_state(row.value, row.stage, int(row.version[-1]))
                updates.append(StateUpdate(key, row.offset, value))
        return updates

    def retry(self, failed: Tombstone | StateUpdate) -> None:
        """Make a record that could not be written due again."""
        row = self._rows.get(failed.row)
        if row is None:
            return
        if isinstance(failed, Tombstone):
            if row.deleting == failed.offset:
                row.deleting = -1
        elif row.stating == failed.offset:
            row.stating = -1
            self._await_window(failed.row, row)

    def is_final_until(self, topic: str, until: int) -> bool:
        """Whether the log has the final state of every row whose window ended by then."""
        return all(
            row.is_deleted
            or row.window_end is None
            or row.window_end > until
            or (row.stage and row.has_state)
            for key, row in self._rows.items()
            if key.topic == topic
        )

    def forget(self, watermarks: Mapping[str, int], spark_committed: Mapping[str, int]) -> None:
        """Drop rows that cannot change any more.

        `spark_committed`, by topic: Spark has committed all that it wrote before then, in
        milliseconds since the epoch. After a crash it may repeat what it wrote later.
        """
        for topic, deleted in self._deleted.items():
            while deleted and deleted[0][0] < spark_committed.get(topic, 0) - _CLOCK_SKEW_MS:
                _, key = heapq.heappop(deleted)
                row = self._rows.get(key)
                if row is not None and row.is_deleted and row.offset == row.deleting:
                    self._drop(key, row)
        for topic, queue in self._final.items():
            spec, later = self._views[topic].window_spec, []
            lateness = _CLOCK_SKEW_MS + (spec.lateness_ms if spec is not None else 0)
            while queue and queue[0][0] + lateness <= watermarks.get(topic, 0):
                window_end, key = heapq.heappop(queue)
                row = self._rows.get(key)
                if row is None or not row.has_state or row.stage == PROVISIONAL:
                    continue  # the next change of the row puts it back into this queue
                if row.spark_wrote >= spark_committed.get(topic, 0) - _CLOCK_SKEW_MS:
                    later.append((window_end, key))
                else:
                    self._drop(key, row)
            for each in later:
                heapq.heappush(queue, each)

    def _drop(self, key: RowKey, row: _Row) -> None:
        del self._rows[key]
        if row.window_end is not None:
            self._forgotten[key.topic] = max(row.window_end, self._forgotten.get(key.topic, 0))

    def _decode(self, record: Record) -> _Decoded | None:
        assert record.value is not None
        try:
            row = msgspec.json.decode(record.value)
        except ValueError:
            return None
        if not isinstance(row, dict):
            return None
        received, topic = row.get(RECEIVED), record.topic
        if isinstance(received, str) and received > self.received.get(topic, ""):
            self.received[topic] = received
        return _Decoded(version_of(row), _window_end(row, self._views[topic].window))

    def _first_version(self, record: Record, decoded: _Decoded) -> RowVersion:
        """The version of a row whose key is not held: a correction if its window was final.

        Not in append mode: there rows come once, when they are final, and later sessions later.
        """
        comes_once = self._views[record.topic].output_mode == "append"
        if decoded.stage != PROVISIONAL or decoded.window_end is None or comes_once:
            return decoded.version
        committed = self.committed.get((record.topic, record.partition), _NOTHING)
        was_final = record.offset >= committed.offset and decoded.window_end <= committed.until
        if was_final or decoded.window_end <= self._forgotten.get(record.topic, 0):
            return _corrected(decoded.version)
        return decoded.version

    def _replace(
        self,
        key: RowKey,
        held: _Row | None,
        record: Record,
        decoded: _Decoded,
        version: RowVersion,
    ) -> None:
        is_same = held is not None and decoded.is_same_row(held)
        if held is not None and held.stating >= 0 and not is_same:
            # The log calls an older revision final, or will before it has a record of ours.
            version = _corrected(version)
        keep = self._views[key.topic].keep_ms
        since = record.timestamp if decoded.window_end is None else decoded.window_end
        is_from_spark = decoded.stage == PROVISIONAL and not decoded.version[-1]
        row = _Row(
            version=version,
            offset=record.offset,
            first_offset=held.first_offset if held is not None and is_same else record.offset,
            timestamp=record.timestamp,
            value=record.value,
            expires=None if keep is None else since + keep,
            window_end=decoded.window_end,
            spark_wrote=record.timestamp if is_from_spark or held is None else held.spark_wrote,
            has_state=decoded.stage == version[-2],
            deleting=-1 if held is None else held.deleting,
            is_open=held is not None and held.is_open and held.window_end == decoded.window_end,
        )
        self._rows[key] = row
        self._restored.pop(key, None)
        self._without_state.discard(key)
        if row.expires is not None:
            self._expire_at(row.expires, key)
        if row.window_end is not None:
            self._enqueue(key, row)

    def _enqueue(self, key: RowKey, row: _Row) -> None:
        """Let the row wait for what it needs next: its window's end, its state, or its end."""
        if row.stage == PROVISIONAL:
            self._await_window(key, row)
        elif not row.has_state:
            self._without_state.add(key)
        else:
            self._without_state.discard(key)
            if self._views[key.topic].keep_ms is None:
                row.value = None  # we never write it again
                if row.window_end is not None:
                    heapq.heappush(self._final[key.topic], (row.window_end, key))

    def _await_window(self, key: RowKey, row: _Row) -> None:
        if row.stage == PROVISIONAL and row.window_end is not None and not row.is_open:
            row.is_open = True
            heapq.heappush(self._open[key.topic], (row.window_end, key))

    def _delete(self, key: RowKey, held: _Row, record: Record) -> None:
        deletes = int(dict(record.headers).get(DELETES, str(record.offset).encode()))
        if held.first_offset > deletes and not held.is_deleted and held.value is not None:
            value = with_state(held.value, held.stage, record.offset)
            self._restored[key] = RestoredRow(key, value, held.timestamp)
        held.is_deleted, held.has_state = True, True
        held.offset = held.deleting = record.offset
        if key not in self._restored:
            held.value = None
        self._without_state.discard(key)
        heapq.heappush(self._deleted[key.topic], (held.spark_wrote, key))

    def _repeat(self, key: RowKey, held: _Row, record: Record, decoded: _Decoded) -> None:
        """Servers ignore this record, but compaction keeps it alone, as the newest of its key."""
        if held.is_deleted:
            if held.expires is not None and key not in self._restored:
                held.offset = record.offset
                self._expire_at(held.expires, key)
            return
        if decoded.version[:-2] == held.version[:-2]:
            held.offset, held.value = record.offset, record.value
            held.has_state = decoded.stage == held.stage
        else:
            if decoded.stage != PROVISIONAL:
                held.version = _corrected(held.version)
            # Without its value the row waits for Spark, which repeats up to the newest.
            held.has_state, held.stating = False, -1
        if held.window_end is not None:
            self._enqueue(key, held)

    def _expire_at(self, expires: int, key: RowKey) -> None:
        if key not in self._is_expiring:
            self._is_expiring.add(key)
            heapq.heappush(self._expiring, (expires, key))


def _corrected(version: RowVersion) -> RowVersion:
    return (*version[:-2], CORRECTED, version[-1])


def _window_end(row: Mapping[str, Any], column: str | None) -> int | None:
    window = row.get(column) if column is not None else None
    end = window.get("end") if isinstance(window, dict) else None
    try:
        return to_ms(end) if end else None
    except (TypeError, ValueError, OverflowError):
        return None
