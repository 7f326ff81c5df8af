"""A view or stream as this process serves it: rows, newest changes, and who wants to know."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge
from itertools import islice
from typing import Any, Literal, NamedTuple

from millstream.errors import LogError
from millstream.expression.condition import Predicate
from millstream.log.record import Record
from millstream.schema.column_types import is_exact
from millstream.serve.settings import ServeSettings
from millstream.serve.views.encoding import (
    Shape,
    Snapshots,
    encode,
    encode_moment,
    with_lineage,
    without_lineage,
)
from millstream.serve.views.filter import Deadline, Pick, compile_select, compile_where, order_rows
from millstream.serve.views.tally import Tally
from millstream.store.views.ring import Change
from millstream.store.views.table import Table
from millstream.values.position import Position
from millstream.values.report import Column, ViewDescription

_log = logging.getLogger(__name__)
_BIG = 2_000  # rows; from here on they are chosen and encoded beside the event loop
_FILTERED = 50  # the same, where a client's expressions are evaluated for each
_RUN = 10_000  # rows that are sorted at a time: until Python's sort has ended, no thread goes on
Keyed = tuple[str | None, Mapping[str, Any]]


class Chosen(NamedTuple):
    """Rows that were asked for."""

    rows: list[Keyed]
    total: int  # how many there are without the limit


class Live:
    """Belongs to the event loop's thread. Nothing here blocks."""

    # Whether its rows mean something only all together: who names no position then gets them from
    # the first one on, each as a change, instead of a snapshot.
    adds_up = False

    def __init__(
        self,
        name: str,
        kind: Literal["view", "stream", "ledger"],
        topic: str,
        settings: ServeSettings,
        *,
        key: tuple[str, ...] | None = None,
        columns: tuple[Column, ...] = (),
    ) -> None:
        self.name = name
        self.kind = kind
        self.topic = topic
        self.key = key
        self.columns = columns
        self.description: ViewDescription | None = None
        self.epoch = ""
        self.warning = ""  # why its rows may not be up to date; empty: nothing is known
        self.watermark = 0  # windows that ended by then are final; milliseconds, 0: unknown
        self.beginnings = 0  # how often the reading began; numbers in the ring are of one only
        self.tally = Tally()
        self.snapshots = Snapshots()
        self.watchers: set[Callable[[], None]] = set()
        self.listeners: list[Callable[[Live, list[Change]], None]] = []
        self._settings = settings
        self._shapes: weakref.WeakValueDictionary[object, Shape] = weakref.WeakValueDictionary()
        self.table = self._empty_table(columns, False, {})

    @property
    def position(self) -> Position:
        return Position(self.epoch, dict(enumerate(self.table.offsets)))

    @property
    def is_stateful(self) -> bool:
        """Whether its rows are provisional, final or corrected: those of windows are."""
        return self.description is not None and self._has_states(self.description)

    def _has_states(self, description: ViewDescription) -> bool:
        return self.key is not None and description.has_states

    @property
    def is_whole(self) -> bool:
        """Whether its topic is never compacted: what offsets lack are the ends of transactions."""
        described = self.description
        return described is not None and described.accumulation == "discard"

    @property
    def watermark_json(self) -> bytes:
        """`"2026-01-31T12:00:00.000Z"`, or null while it is unknown."""
        return encode_moment(self.watermark)

    @property
    def warning_json(self) -> bytes:
        """`"warning":"…",`, or nothing."""
        return b'"warning":%b,' % encode(self.warning) if self.warning else b""

    def begin(self, epoch: str, starts: Mapping[int, int]) -> None:
        """Start over with the topic of that id, of which nothing before `starts` is held."""
        self.tally.start_over()
        self._begin(epoch, self._empty_table(self.columns, self.is_stateful, starts))

    def move(self, description: ViewDescription, topic: str, epoch: str, table: Table) -> None:
        """Go over to another topic at once, whose records are in `table` already."""
        self.topic, self.description = topic, description
        self.columns = self._columns_of(description)
        self._begin(epoch, table)

    def _begin(self, epoch: str, table: Table) -> None:
        self.epoch, self.table = epoch, table
        self.beginnings += 1
        self.snapshots.forget()
        for shape in self._shapes.values():
            shape.forget()
        for listener in self.listeners:
            listener(self, [])
        self.wake()

    def apply(self, records: Iterable[Record]) -> None:
        """Take records in, each partition's in order, and tell everyone who watches."""
        apply, changes = self.table.apply, []
        for record in records:
            change = apply(
                record.partition, record.offset, record.timestamp, record.key, record.value
            )
            if change is not None:
                changes.append(change)
        self.tally.count(changes)
        if changes:
            for listener in self.listeners:
                listener(self, changes)
        self.wake()

    def wake(self) -> None:
        for watcher in tuple(self.watchers):
            try:
                watcher()
            except Exception:  # one client's trouble must not stop the reading for all
                _log.exception("a client of %s %s could not be told", self.kind, self.name)

    def describe(self, description: ViewDescription) -> None:
        """Take in what `analyze` says about the view."""
        before = self._is_exact(self.columns), self.is_stateful
        self.description = description
        columns = self._columns_of(description)
        if columns != self.columns:
            self.columns = columns
            if (self._is_exact(columns), self.is_stateful) != before and not len(self.table):
                self.begin(self.epoch, dict(enumerate(self.table.offsets)))
            for listener in self.listeners:
                listener(self, [])

    def _columns_of(self, description: ViewDescription) -> tuple[Column, ...]:
        return description.shown_columns

    def shape(self, where: str | None, select: tuple[str, ...] | None, lineage: bool) -> Shape:
        """The shape of that filter and selection; QueryError if it cannot be had."""
        asked = (where, select, lineage, self.columns)
        shape = self._shapes.get(asked)
        if shape is None:
            if (where or select) and not self.columns:
                raise LogError(
                    f"{self.kind} {self.name} is not described yet, so it cannot be filtered",
                    remedy="start analyze, or try again in a moment",
                )
            pick: Pick = with_lineage if lineage else without_lineage
            if select:
                pick = self._pick(select)
            shape = self._shapes[asked] = Shape(self._predicate(where) if where else None, pick)
        return shape

    def _predicate(self, where: str) -> Predicate:
        return compile_where(where, self.columns, self.kind == "view")

    def _pick(self, select: tuple[str, ...]) -> Pick:
        return compile_select(select, self.columns)

    def _is_exact(self, columns: tuple[Column, ...]) -> bool:
        return is_exact(columns)

    def choice(
        self, shape: Shape, order: str | None = None, limit: int | None = None
    ) -> Callable[[], Chosen]:
        """What chooses from the rows as they are now; it may be called in any thread, once.

        A table's rows come by key unless an order is asked for, a stream's are the newest.
        QueryError when called, if the filter or the order takes too long.
        """
        keyed, columns, seconds = self.table.keyed, self.columns, self._settings.query_seconds
        rows: list[Keyed]
        if keyed:
            rows = list(self.table.rows.items())
        else:
            rows = [(None, row) for row in self.table.newest]
        return lambda: _choose(rows, shape, columns, order, limit, Deadline(seconds), keyed=keyed)

    def is_slow(self, shape: Shape, order: str | None = None) -> bool:
        """Whether choosing and encoding the rows would hold up the event loop."""
        return len(self.table) > (_BIG if shape.where is None and not order else _FILTERED)

    def table_for(self, description: ViewDescription, starts: Mapping[int, int]) -> Table:
        """An empty table for the view as described, of which nothing before `starts` is held."""
        columns = self._columns_of(description)
        return self._empty_table(columns, self._has_states(description), starts)

    def _empty_table(
        self, columns: tuple[Column, ...], stateful: bool, starts: Mapping[int, int]
    ) -> Table:
        table = Table(
            keyed=self.key is not None,
            stateful=stateful,
            recent=self._settings.recent_changes,
            newest=self._settings.newest_rows,
            numbers="decimal" if self._is_exact(columns) else "float",
        )
        for partition, offset in sorted(starts.items()):
            table.start_at(partition, offset)
        return table


def _choose(
    rows: list[Keyed],
    shape: Shape,
    columns: tuple[Column, ...],
    order: str | None,
    limit: int | None,
    deadline: Deadline,
    *,
    keyed: bool,
) -> Chosen:
    if shape.where is not None:
        rows = list(_matching(rows, shape, deadline))
    total = len(rows)
    if order:
        rows = order_rows(rows, order, columns, deadline)
    elif keyed:
        # Every server must give the same answer, whatever order it read the rows in.
        return Chosen(_sort(rows, limit), total)
    elif limit is not None:
        return Chosen(rows[-limit:] if limit else [], total)
    return Chosen(rows if limit is None else rows[:limit], total)


def _sort(rows: list[Keyed], limit: int | None) -> list[Keyed]:
    """The first `limit` rows by key."""
    runs = [sorted(rows[at : at + _RUN], key=_key_of) for at in range(0, len(rows), _RUN)]
    most = len(rows) if limit is None else min(limit, len(rows))
    return list(islice(merge(*runs, key=_key_of), most))


def _key_of(keyed_row: Keyed) -> str:
    return keyed_row[0] or ""


def _matching(rows: Iterable[Keyed], shape: Shape, deadline: Deadline) -> Iterator[Keyed]:
    for keyed_row in rows:
        deadline.check()
        if shape.matches(keyed_row[1]):
            yield keyed_row
