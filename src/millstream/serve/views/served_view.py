"""A view or stream that this process serves: its rows, newest changes and subscribers."""

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
    Encoding,
    SnapshotCache,
    encode,
    iso_time,
    with_lineage,
    without_lineage,
)
from millstream.serve.views.filter import (
    Deadline,
    Projection,
    compile_select,
    compile_where,
    order_rows,
)
from millstream.serve.views.pages import SharedRows
from millstream.serve.views.view_metrics import ViewMetrics
from millstream.store.views.ring import ViewChange
from millstream.store.views.table import ViewTable
from millstream.values.position import Position
from millstream.values.view_description import ViewColumn, ViewDescription

_log = logging.getLogger(__name__)
_MANY_ROWS = 2_000  # more are selected and encoded in a thread, not in the event loop
_MANY_FILTERED_ROWS = 50  # the same, if a client's expressions are evaluated for each row
_SORTED_AT_ONCE = 10_000  # rows; Python's sort lets no other thread run until it ends
KeyedRow = tuple[str | None, Mapping[str, Any]]


class SelectedRows(NamedTuple):
    """Rows that match a selection."""

    rows: list[KeyedRow]
    total: int  # matching rows, without the limit


class ServedView:
    """Rows, newest changes and subscribers. Belongs to the event loop; nothing here blocks."""

    # True if rows are useful only all together. A client without a position then gets every row
    # as a change, from the first one on, instead of a snapshot.
    sends_full_history = False

    def __init__(
        self,
        name: str,
        kind: Literal["view", "stream", "ledger"],
        topic: str,
        settings: ServeSettings,
        *,
        key: tuple[str, ...] | None = None,
        columns: tuple[ViewColumn, ...] = (),
    ) -> None:
        self.name = name
        self.kind = kind
        self.topic = topic
        self.key = key
        self.columns = columns
        self.description: ViewDescription | None = None
        self.epoch = ""
        self.warning = ""  # why the rows may be out of date; empty: no known reason
        self.watermark = 0  # windows that ended by then are final; milliseconds, 0: unknown
        self.restarts = 0  # how often reading began; change numbers are valid for one start only
        self.metrics = ViewMetrics()
        self.snapshots = SnapshotCache()
        self.subscribers: set[Callable[[], None]] = set()
        # Called with the changes; an empty list means that the view starts again.
        self.listeners: list[Callable[[ServedView, list[ViewChange]], None]] = []
        self._settings = settings
        self._shared_rows: weakref.ref[SharedRows] | None = None
        self._encodings = weakref.WeakValueDictionary[object, Encoding]()
        self.table = self._empty_table(columns, False, {})

    @property
    def position(self) -> Position:
        return Position(self.epoch, dict(enumerate(self.table.offsets)))

    @property
    def is_stateful(self) -> bool:
        """Whether rows are provisional, final or corrected, as rows of windows are."""
        return self.description is not None and self._has_states(self.description)

    def _has_states(self, description: ViewDescription) -> bool:
        return self.key is not None and description.has_states

    @property
    def is_uncompacted(self) -> bool:
        """Whether Kafka never compacts the topic: missing offsets are the ends of transactions."""
        described = self.description
        return described is not None and described.accumulation == "discard"

    @property
    def watermark_json(self) -> bytes:
        """`"2026-01-31T12:00:00.000Z"`, or null while it is unknown."""
        return encode(iso_time(self.watermark))

    @property
    def warning_json(self) -> bytes:
        """`"warning":"…",`, or nothing."""
        return b'"warning":%b,' % encode(self.warning) if self.warning else b""

    def reset(self, epoch: str, starts: Mapping[int, int]) -> None:
        """Start empty with the topic of that id; nothing before the offsets `starts` is read."""
        self.metrics.reset()
        self._start(epoch, self._empty_table(self.columns, self.is_stateful, starts))

    def switch_topic(
        self, description: ViewDescription, topic: str, epoch: str, table: ViewTable
    ) -> None:
        """Continue with another topic, whose records are already in `table`."""
        self.metrics.reset()
        self.topic, self.description = topic, description
        self.columns = self._columns_of(description)
        self._start(epoch, table)

    def _start(self, epoch: str, table: ViewTable) -> None:
        self.epoch, self.table = epoch, table
        self.restarts += 1
        self._shared_rows = None
        self.snapshots.clear()
        for encoding in self._encodings.values():
            encoding.clear()
        for listener in self.listeners:
            listener(self, [])
        self.wake()

    def apply(self, records: Iterable[Record]) -> None:
        """Apply records, each partition's in order, and wake the subscribers."""
        apply, changes = self.table.apply, []
        for record in records:
            change = apply(
                record.partition, record.offset, record.timestamp, record.key, record.value
            )
            if change is not None:
                changes.append(change)
        self.metrics.count(changes)
        if changes:
            for listener in self.listeners:
                listener(self, changes)
        self.wake()

    def wake(self) -> None:
        for subscriber in tuple(self.subscribers):
            try:
                subscriber()
            except Exception:  # one client's failure must not stop reading for all others
                _log.exception("cannot send to a client of %s %s", self.kind, self.name)

    def describe(self, description: ViewDescription) -> None:
        """Use the description of the view that `analyze` wrote."""
        before = self._is_exact(self.columns), self.is_stateful
        self.description = description
        columns = self._columns_of(description)
        if columns != self.columns:
            self.columns = columns
            if (self._is_exact(columns), self.is_stateful) != before and not len(self.table):
                self.reset(self.epoch, dict(enumerate(self.table.offsets)))
            for listener in self.listeners:
                listener(self, [])

    def _columns_of(self, description: ViewDescription) -> tuple[ViewColumn, ...]:
        return description.shown_columns

    def encoding(
        self, where: str | None, select: tuple[str, ...] | None, lineage: bool
    ) -> Encoding:
        """The encoding for a filter and columns; QueryError if they do not fit the view."""
        key = (where, select, lineage, self.columns)
        encoding = self._encodings.get(key)
        if encoding is None:
            if (where or select) and not self.columns:
                raise LogError(
                    f"{self.kind} {self.name} is not described yet, so it cannot be filtered",
                    remedy="start analyze, or try again in a moment",
                )
            project: Projection = with_lineage if lineage else without_lineage
            if select:
                project = self._projection(select)
            predicate = self._predicate(where) if where else None
            encoding = self._encodings[key] = Encoding(predicate, project)
        return encoding

    def _predicate(self, where: str) -> Predicate:
        return compile_where(where, self.columns, self.kind == "view")

    def _projection(self, select: tuple[str, ...]) -> Projection:
        return compile_select(select, self.columns)

    def _is_exact(self, columns: tuple[ViewColumn, ...]) -> bool:
        return is_exact(columns)

    def prepare_rows(
        self, encoding: Encoding, order: str | None = None, limit: int | None = None
    ) -> Callable[[], SelectedRows]:
        """A function that selects from the current rows. Call it once, in any thread.

        Rows of a table are sorted by key unless there is an order; of a stream they are the newest.
        The function raises QueryError if the filter or the order takes too long.
        """
        keyed, columns, seconds = self.table.keyed, self.columns, self._settings.query_seconds
        rows: list[KeyedRow]
        if keyed:
            rows = list(self.table.rows.items())
        else:
            rows = [(None, row) for row in self.table.newest]
        return lambda: _select_rows(
            rows, encoding, columns, order, limit, Deadline(seconds), keyed=keyed
        )

    def rows_now(self) -> SharedRows:
        """References to all rows of a view with key, shared by clients at the same position."""
        shared = self._shared_rows() if self._shared_rows is not None else None
        if shared is None or shared.offsets != self.table.offsets:
            shared = SharedRows(self.table.rows, self.table.offsets)
            self._shared_rows = weakref.ref(shared)
        return shared

    def deadline(self) -> Deadline:
        """The time limit for one filter over all rows, from now on."""
        return Deadline(self._settings.query_seconds)

    @property
    def page_bytes(self) -> int:
        return self._settings.page_bytes

    def is_expensive(self, encoding: Encoding, order: str | None = None) -> bool:
        """Whether selecting and encoding the rows would block the event loop for too long."""
        is_filtered = encoding.where is not None or order
        return len(self.table) > (_MANY_FILTERED_ROWS if is_filtered else _MANY_ROWS)

    def table_for(self, description: ViewDescription, starts: Mapping[int, int]) -> ViewTable:
        """An empty table for the view as described; nothing before the offsets `starts` is read."""
        columns = self._columns_of(description)
        return self._empty_table(columns, self._has_states(description), starts)

    def _empty_table(
        self, columns: tuple[ViewColumn, ...], stateful: bool, starts: Mapping[int, int]
    ) -> ViewTable:
        table = ViewTable(
            keyed=self.key is not None,
            stateful=stateful,
            recent=self._settings.recent_changes,
            newest=self._settings.newest_rows,
            numbers="decimal" if self._is_exact(columns) else "float",
        )
        for partition, offset in sorted(starts.items()):
            table.start_at(partition, offset)
        return table


def _select_rows(
    rows: list[KeyedRow],
    encoding: Encoding,
    columns: tuple[ViewColumn, ...],
    order: str | None,
    limit: int | None,
    deadline: Deadline,
    *,
    keyed: bool,
) -> SelectedRows:
    if encoding.where is not None:
        rows = list(_matching(rows, encoding, deadline))
    total = len(rows)
    if order:
        rows = order_rows(rows, order, columns, deadline)
    elif keyed:
        # Every server must give the same answer, whatever the order in which it read the rows.
        return SelectedRows(_sort_by_key(rows, limit), total)
    elif limit is not None:
        return SelectedRows(rows[-limit:] if limit else [], total)
    return SelectedRows(rows if limit is None else rows[:limit], total)


def _sort_by_key(rows: list[KeyedRow], limit: int | None) -> list[KeyedRow]:
    """The first `limit` rows by key."""
    parts = [
        sorted(rows[at : at + _SORTED_AT_ONCE], key=_key_of)
        for at in range(0, len(rows), _SORTED_AT_ONCE)
    ]
    count = len(rows) if limit is None else min(limit, len(rows))
    return list(islice(merge(*parts, key=_key_of), count))


def _key_of(keyed_row: KeyedRow) -> str:
    return keyed_row[0] or ""


def _matching(
    rows: Iterable[KeyedRow], encoding: Encoding, deadline: Deadline
) -> Iterator[KeyedRow]:
    for keyed_row in rows:
        deadline.check()
        if encoding.matches(keyed_row[1]):
            yield keyed_row
