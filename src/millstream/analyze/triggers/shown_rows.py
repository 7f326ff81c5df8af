"""Decides which rows of a view are shown, when and how, by its trigger and its accumulation.

Without Kafka: the query's records and the clock in, records out. `RowStateWriter` writes a row's
final state behind the row into the same topic. So a row that is read later is never called final
too early. The state of each key is written together with what is shown. After a crash, all states
are restored and the query's rows are read again, with the same outcome.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from millstream.analyze.row_state.row_updates import REBUILT, with_state
from millstream.analyze.triggers import rows
from millstream.analyze.triggers.rows import Stage, Version
from millstream.expression.condition import compile_condition
from millstream.log.record import Record
from millstream.pipeline.trigger import (
    Accumulation,
    AtWatermark,
    EveryChange,
    EveryEvents,
    EveryInterval,
    Trigger,
    When,
)
from millstream.syntax.duration import milliseconds
from millstream.values.view_description import ViewColumn

NEVER = Version(-1)


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """How a view's rows are shown."""

    trigger: Trigger
    accumulation: Accumulation
    additive: tuple[str, ...]  # the columns of which differences are shown
    window: str | None  # the column that is a time window
    columns: tuple[ViewColumn, ...]


class Output(NamedTuple):
    """Records to write for one key, in this order; None is a tombstone."""

    key: bytes
    partition: int  # of the query's record
    values: tuple[bytes | None, ...]
    row: bytes | None  # the whole row with its state; None: deleted


class FinalRow(NamedTuple):
    """A row that was shown as final or corrected."""

    key: bytes
    partition: int
    row: bytes
    is_deleted: bool


class ShownState(msgspec.Struct, frozen=True, omit_defaults=True):
    """State of one key. It is stored: field names cannot change."""

    generation: str
    mark: tuple[int, int]  # version of the newest row that the trigger has seen
    shown: msgspec.Raw = msgspec.Raw(b"null")
    shown_mark: tuple[int, int] = NEVER
    stage: int = 0
    above: bool = False
    ended: int | None = None


@dataclass(slots=True)
class _Row:
    partition: int = 0
    version: Version = NEVER  # of the newest row that the trigger has seen
    newest: bytes | None = None
    newest_version: Version = NEVER
    shown: bytes | None = None  # the whole row, without its state
    shown_version: Version = NEVER
    stage: Stage = Stage.PROVISIONAL
    was_true: bool = False  # whether the trigger's condition held
    deleted: int | None = None  # when the row was deleted


class ShownRows:
    """The rows of one view that clients see. Not thread-safe; never blocks."""

    def __init__(self, spec: OutputSpec, generation: str, forget_ms: int) -> None:
        """States of another `generation` are void. `forget_ms`: how long after its deletion a row
        may come again.
        """
        self._spec = spec
        self._generation = generation
        self._forget_ms = forget_ms
        self._condition = (
            compile_condition(spec.trigger.condition, spec.columns)
            if isinstance(spec.trigger, When)
            else None
        )
        self._rows: dict[bytes, _Row] = {}
        self._pending: dict[bytes, None] = {}  # keys that changed since they were shown, in order
        self._deleted: list[tuple[int, bytes]] = []
        self._interval: int | None = None  # number of the trigger's current interval
        self._outputs: list[Output] = []
        self._changed: dict[bytes, None] = {}  # keys whose state is to be written

    def restore(self, key: bytes, value: bytes) -> None:
        """Restore a state that `take_outputs` returned; before any record."""
        state = msgspec.json.decode(value, type=ShownState)
        if state.generation != self._generation:
            self._changed[key] = None
            return
        shown = None if bytes(state.shown) == b"null" else bytes(state.shown)
        row = _Row(
            version=Version(*state.mark),
            newest=shown,
            newest_version=Version(*state.shown_mark),
            shown=shown,
            shown_version=Version(*state.shown_mark),
            stage=Stage(state.stage),
            was_true=state.above,
            deleted=state.ended,
        )
        self._rows[key] = row
        if row.deleted is not None:
            heapq.heappush(self._deleted, (row.deleted, key))

    def apply(self, record: Record) -> None:
        """Process a record of the query, in the order of its partition.

        A record that was processed before changes nothing: its outcome is in the states.
        """
        if record.key is None:
            return
        if record.value is None:
            self._delete(record.key, record.timestamp)
            return
        try:
            content = rows.decode(record.value)
        except msgspec.DecodeError:
            return
        version, stage = rows.version(content), rows.stage(content)
        if version is None:
            return
        key, row = record.key, self._rows.setdefault(record.key, _Row())
        row.partition = record.partition
        if version >= row.version and version > row.newest_version:
            row.newest = with_state(record.value, Stage.PROVISIONAL, version.returned)
            row.newest_version = version
        if version > row.version:
            row.version, row.deleted = version, None
            is_provisional = stage is Stage.PROVISIONAL
            if is_provisional or row.stage is not Stage.PROVISIONAL or self._condition:
                self._apply_trigger(key, row)
        if (
            stage is not Stage.PROVISIONAL
            and row.stage is Stage.PROVISIONAL
            and row.deleted is None
        ):
            self._finalize(key, row, stage)
        elif (
            row.stage is Stage.FINAL
            and version == row.shown_version
            and REBUILT in dict(record.headers)
        ):
            self._show(key, row, stage)

    def tick(self, now: int) -> None:
        """Show what is due by the clock, and forget rows that were deleted long ago."""
        if isinstance(self._spec.trigger, EveryInterval):
            interval = now // milliseconds(self._spec.trigger.interval)
            if self._interval is not None and interval > self._interval:
                for key in list(self._pending):
                    self._show(key, self._rows[key])
            self._interval = interval
        while self._deleted and self._deleted[0][0] + self._forget_ms <= now:
            deleted, key = heapq.heappop(self._deleted)
            if key in self._rows and self._rows[key].deleted == deleted:
                del self._rows[key]
                self._changed[key] = None

    def take_outputs(self) -> tuple[list[Output], list[tuple[bytes, bytes | None]]]:
        """The outputs since the last call, in order, and each key's state after them."""
        outputs, changed = self._outputs, self._changed
        self._outputs, self._changed = [], {}
        return outputs, [(key, self._state(key)) for key in changed]

    def final_rows(self) -> Iterator[FinalRow]:
        """The rows that were shown and are not provisional."""
        for key, row in self._rows.items():
            if row.shown is not None and row.stage is not Stage.PROVISIONAL:
                value = rows.with_stage(row.shown, row.stage)
                yield FinalRow(key, row.partition, value, row.deleted is not None)

    def _apply_trigger(self, key: bytes, row: _Row) -> None:
        is_seen = self._condition is None or row.shown is not None
        if row.stage is not Stage.PROVISIONAL and is_seen:
            self._show(key, row, Stage.CORRECTED)
            return
        match self._spec.trigger:
            case EveryChange():
                self._show(key, row)
            case EveryEvents(count):
                if (
                    row.newest_version.revision // count
                    > max(row.shown_version.revision, 0) // count
                ):
                    self._show(key, row)
            case EveryInterval() | AtWatermark():
                self._pending[key] = None
            case When():
                if self._becomes_true(key, row):
                    is_over = row.stage is not Stage.PROVISIONAL
                    self._show(key, row, Stage.CORRECTED if is_over else None)

    def _becomes_true(self, key: bytes, row: _Row) -> bool:
        """Whether the trigger's condition became true with this row."""
        assert self._condition is not None
        assert row.newest is not None
        before, row.was_true = row.was_true, self._condition(rows.decode(row.newest))
        if row.was_true != before:
            self._changed[key] = None
        return row.was_true and not before

    def _finalize(self, key: bytes, row: _Row, stage: Stage) -> None:
        """Show the row as final. A row that `when` never showed stays hidden."""
        if row.newest is not None and (self._condition is None or row.shown is not None):
            self._show(key, row, stage)
        else:
            row.stage = stage
            self._changed[key] = None

    def _delete(self, key: bytes, at: int) -> None:
        row = self._rows.get(key)
        if row is None or row.deleted is not None:
            return
        # The last chance to show what was not shown yet, or not as final.
        if self._spec.window is not None and row.stage is Stage.PROVISIONAL:
            self._finalize(key, row, Stage.FINAL)
        elif key in self._pending:
            self._show(key, row)
        self._pending.pop(key, None)
        row.deleted = at
        heapq.heappush(self._deleted, (at, key))
        if row.shown is not None:
            self._outputs.append(Output(key, row.partition, (None,), None))
        self._changed[key] = None

    def _show(self, key: bytes, row: _Row, stage: Stage | None = None) -> None:
        assert row.newest is not None
        self._pending.pop(key, None)
        before = None if row.shown is None else rows.with_stage(row.shown, row.stage)
        row.stage = row.stage if stage is None else stage
        whole = rows.with_stage(row.newest, row.stage)
        values: tuple[bytes, ...] = (whole,)
        if self._spec.accumulation == "discard":
            new = rows.difference(row.newest, row.shown, self._spec.additive)
            values = (rows.with_stage(new, row.stage),)
        elif self._spec.accumulation == "retract" and before is not None:
            values = (rows.retraction(before), whole)
        row.shown, row.shown_version = row.newest, row.newest_version
        self._outputs.append(Output(key, row.partition, values, whole))
        self._changed[key] = None

    def _state(self, key: bytes) -> bytes | None:
        row = self._rows.get(key)
        if row is None:
            return None
        state = ShownState(
            self._generation,
            row.version,
            msgspec.Raw(b"null" if row.shown is None else row.shown),
            row.shown_version,
            int(row.stage),
            row.was_true,
            row.deleted,
        )
        return msgspec.json.encode(state)
