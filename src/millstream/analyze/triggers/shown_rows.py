"""Which rows of a view are shown, when, and how: its trigger and its accumulation.

Knows no Kafka: the query's records and the clock in, records out. That a row is final stands in
its own topic, behind it, as `row_state_writer` wrote it there: so nothing that was read
later can be called final too early. What was shown of each key is kept as a state, which is written
with what is shown: so whoever recalls all states and reads the query's rows again goes on as if
nothing had happened.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from millstream.analyze.row_state.row_updates import REBUILT
from millstream.analyze.triggers import rows
from millstream.analyze.triggers.rows import Mark, Stage
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

NEVER = Mark(-1)


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """How a view's rows are shown."""

    trigger: Trigger
    accumulation: Accumulation
    additive: tuple[str, ...]  # the columns of which there are differences
    window: str | None  # the column that is a time window
    columns: tuple[ViewColumn, ...]


class Output(NamedTuple):
    """What to write for one key, in this order; None is a tombstone."""

    key: bytes
    partition: int  # of the query's record
    values: tuple[bytes | None, ...]
    row: bytes | None  # the row as a whole, with its state; None: gone


class State(msgspec.Struct, frozen=True, omit_defaults=True):
    """What must outlive us of one key."""

    generation: str
    mark: tuple[int, int]  # of the newest row that was judged
    shown: msgspec.Raw = msgspec.Raw(b"null")
    shown_mark: tuple[int, int] = NEVER
    stage: int = 0
    above: bool = False
    ended: int | None = None


@dataclass(slots=True)
class _Row:
    partition: int = 0
    mark: Mark = NEVER  # of the newest row that was judged
    newest: bytes | None = None
    newest_mark: Mark = NEVER
    shown: bytes | None = None  # as a whole, without its state
    shown_mark: Mark = NEVER
    stage: Stage = Stage.PROVISIONAL
    above: bool = False  # whether the trigger's condition held
    ended: int | None = None  # when the row went


class ShownRows:
    """One view's rows. Not thread-safe; never blocks."""

    def __init__(self, showing: OutputSpec, generation: str, forget_ms: int) -> None:
        """`generation`: states of another one count no more. `forget_ms`: how long after its end a
        row may come again.
        """
        self._showing = showing
        self._generation = generation
        self._forget_ms = forget_ms
        self._holds = (
            compile_condition(showing.trigger.condition, showing.columns)
            if isinstance(showing.trigger, When)
            else None
        )
        self._rows: dict[bytes, _Row] = {}
        self._pending: dict[bytes, None] = {}  # changed since they were shown, in that order
        self._ended: list[tuple[int, bytes]] = []
        self._turn: int | None = None  # the interval of the clock that we are in
        self._panes: list[Output] = []
        self._changed: dict[bytes, None] = {}  # keys whose state is to be written

    def recall(self, key: bytes, value: bytes) -> None:
        """Take back a state that `take` gave out; before any record."""
        state = msgspec.json.decode(value, type=State)
        if state.generation != self._generation:
            self._changed[key] = None
            return
        shown = None if bytes(state.shown) == b"null" else bytes(state.shown)
        row = _Row(
            mark=Mark(*state.mark),
            newest=shown,
            newest_mark=Mark(*state.shown_mark),
            shown=shown,
            shown_mark=Mark(*state.shown_mark),
            stage=Stage(state.stage),
            above=state.above,
            ended=state.ended,
        )
        self._rows[key] = row
        if row.ended is not None:
            heapq.heappush(self._ended, (row.ended, key))

    def apply(self, record: Record) -> None:
        """Take in a record of the query, in the order of its partition.

        One that was taken in before changes nothing: what came of it is in the states.
        """
        if record.key is None:
            return
        if record.value is None:
            self._end(record.key, record.timestamp)
            return
        try:
            content = rows.decode(record.value)
        except msgspec.DecodeError:
            return
        mark, stage = rows.mark(content), rows.stage(content)
        if mark is None:
            return
        row = self._rows.setdefault(record.key, _Row())
        row.partition = record.partition
        if mark >= row.mark and mark > row.newest_mark:
            row.newest, row.newest_mark = rows.stateless(record.value, mark.returned), mark
        if mark > row.mark:
            row.mark, row.ended = mark, None
            if stage is Stage.PROVISIONAL or row.stage is not Stage.PROVISIONAL or self._holds:
                self._judge(record.key, row)
        if stage is not Stage.PROVISIONAL and row.stage is Stage.PROVISIONAL and row.ended is None:
            self._close(record.key, row, stage)
        elif (
            row.stage is Stage.FINAL and mark == row.shown_mark and REBUILT in dict(record.headers)
        ):
            self._show(record.key, row, stage)

    def _judge(self, key: bytes, row: _Row) -> None:
        """Decide what comes of a newer row."""
        is_seen = self._holds is None or row.shown is not None
        if row.stage is not Stage.PROVISIONAL and is_seen:
            self._show(key, row, Stage.CORRECTED)
            return
        match self._showing.trigger:
            case EveryChange():
                self._show(key, row)
            case EveryEvents(count):
                if row.newest_mark.revision // count > max(row.shown_mark.revision, 0) // count:
                    self._show(key, row)
            case EveryInterval() | AtWatermark():
                self._pending[key] = None
            case When():
                if self._crosses(key, row):
                    is_over = row.stage is not Stage.PROVISIONAL
                    self._show(key, row, Stage.CORRECTED if is_over else None)

    def _crosses(self, key: bytes, row: _Row) -> bool:
        """Whether the trigger's condition became true with this row."""
        assert self._holds is not None
        assert row.newest is not None
        before, row.above = row.above, self._holds(rows.decode(row.newest))
        if row.above != before:
            self._changed[key] = None
        return row.above and not before

    def tick(self, now: int) -> None:
        """Show what the clock says, and forget what ended long ago."""
        if isinstance(self._showing.trigger, EveryInterval):
            turn = now // (milliseconds(self._showing.trigger.interval))
            if self._turn is not None and turn > self._turn:
                for key in list(self._pending):
                    self._show(key, self._rows[key])
            self._turn = turn
        while self._ended and self._ended[0][0] + self._forget_ms <= now:
            ended, key = heapq.heappop(self._ended)
            if key in self._rows and self._rows[key].ended == ended:
                del self._rows[key]
                self._changed[key] = None

    def take(self) -> tuple[list[Output], list[tuple[bytes, bytes | None]]]:
        """What to write: the panes in order, and each key's state as it is after them."""
        panes, changed = self._panes, self._changed
        self._panes, self._changed = [], {}
        return panes, [(key, self._state(key)) for key in changed]

    def standing(self) -> Iterator[tuple[bytes, int, bytes, bool]]:
        """Rows that were shown and are not provisional: key, partition, row, whether it is gone."""
        for key, row in self._rows.items():
            if row.shown is not None and row.stage is not Stage.PROVISIONAL:
                yield key, row.partition, rows.staged(row.shown, row.stage), row.ended is not None

    def _close(self, key: bytes, row: _Row, stage: Stage) -> None:
        """The window is over: its row is final. One that was never to be seen stays unseen."""
        if row.newest is not None and (self._holds is None or row.shown is not None):
            self._show(key, row, stage)
        else:
            row.stage = stage
            self._changed[key] = None

    def _end(self, key: bytes, at: int) -> None:
        row = self._rows.get(key)
        if row is None or row.ended is not None:
            return
        # What nobody was shown yet, or was not told to be final, would never be.
        if self._showing.window is not None and row.stage is Stage.PROVISIONAL:
            self._close(key, row, Stage.FINAL)
        elif key in self._pending:
            self._show(key, row)
        self._pending.pop(key, None)
        row.ended = at
        heapq.heappush(self._ended, (at, key))
        if row.shown is not None:
            self._panes.append(Output(key, row.partition, (None,), None))
        self._changed[key] = None

    def _show(self, key: bytes, row: _Row, stage: Stage | None = None) -> None:
        assert row.newest is not None
        self._pending.pop(key, None)
        before = None if row.shown is None else rows.staged(row.shown, row.stage)
        row.stage = row.stage if stage is None else stage
        whole = rows.staged(row.newest, row.stage)
        values: tuple[bytes, ...] = (whole,)
        if self._showing.accumulation == "discard":
            new = rows.difference(row.newest, row.shown, self._showing.additive)
            values = (rows.staged(new, row.stage),)
        elif self._showing.accumulation == "retract" and before is not None:
            values = (rows.retraction(before), whole)
        row.shown, row.shown_mark = row.newest, row.newest_mark
        self._panes.append(Output(key, row.partition, values, whole))
        self._changed[key] = None

    def _state(self, key: bytes) -> bytes | None:
        row = self._rows.get(key)
        if row is None:
            return None
        shown = msgspec.Raw(b"null" if row.shown is None else row.shown)
        return msgspec.json.encode(
            State(
                self._generation,
                row.mark,
                shown,
                row.shown_mark,
                int(row.stage),
                row.above,
                row.ended,
            )
        )
