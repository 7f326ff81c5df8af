"""A view or stream that this process serves: its rows, newest changes and subscribers."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from millstream.errors import LogError, QueryError
from millstream.expression.condition import Predicate, parse
from millstream.expression.equality import find_equality
from millstream.expression.policy import compile_rows, parse_rows
from millstream.log.record import Record
from millstream.pipeline.model import NO_POLICY, Policy
from millstream.schema.column_types import is_exact
from millstream.serve.access.visibility import SEES_ALL, AppliedPolicy, Visibility
from millstream.serve.settings import ServeSettings
from millstream.serve.views.encoding import (
    Encoding,
    SnapshotCache,
    encode,
    iso_time,
)
from millstream.serve.views.filter import (
    Deadline,
    Projection,
    compile_select,
    compile_where,
    only,
    with_lineage,
    without_columns,
    without_lineage,
)
from millstream.serve.views.pages import SharedRows
from millstream.serve.views.row_scan import RowScan
from millstream.serve.views.view_metrics import ViewMetrics
from millstream.store.views.equality_index import Equality, EqualityIndex
from millstream.store.views.ring import Offsets, ViewChange
from millstream.store.views.table import ViewTable
from millstream.values.position import Position
from millstream.values.view_description import ViewColumn, ViewDescription

_log = logging.getLogger(__name__)
_MANY_ROWS = 2_000  # more are selected and encoded in a thread, not in the event loop
_MANY_FILTERED_ROWS = 50  # the same, if a client's expressions are evaluated for each row
KeyedRow = tuple[str | None, Mapping[str, Any]]


class SelectedRows(NamedTuple):
    """Rows that match a selection."""

    rows: list[KeyedRow]
    total: int  # matching rows, without the limit


class PositionUnavailable(Exception):
    """The log does not hold every change since a position; the message says why."""


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
        policy: Policy = NO_POLICY,
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
        self.subscribers: dict[Callable[[], None], Encoding] = {}
        # By encoding; those whose filter is not in the index are all under None.
        self._groups: dict[Encoding | None, set[Callable[[], None]]] = {None: set()}
        self._index = EqualityIndex[Encoding]()
        self._unseen_changes = 0  # since all subscribers were woken
        # Called with the changes; an empty list means that the view starts again.
        self.listeners: list[Callable[[ServedView, list[ViewChange]], None]] = []
        self.policy = AppliedPolicy(policy, f"{kind} {name}")
        self.policy.fit(columns)
        self._settings = settings
        self._shared_rows: weakref.ref[SharedRows] | None = None
        self._encodings = weakref.WeakValueDictionary[object, Encoding]()
        self.table = self._empty_table(columns, False, {})

    @property
    def position(self) -> Position:
        return Position(self.epoch, dict(enumerate(self.table.offsets)))

    @property
    def replaced(self) -> str:
        """Why a position of another epoch cannot be used."""
        if self.kind == "view":
            return f"view {self.name} was rebuilt"
        return f"the topic of {self.kind} {self.name} was created again"

    def offsets_at(self, position: Position) -> Offsets:
        """The next offset of each partition; PositionUnavailable if it is of another topic."""
        if position.epoch != self.epoch:
            raise PositionUnavailable(self.replaced)
        partitions = len(self.table.offsets)
        if any(partition >= partitions for partition in position.offsets):
            raise PositionUnavailable("the position names a partition that the topic does not have")
        return tuple(position.offsets.get(p, 0) for p in range(partitions))

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

    def warning_for(self, visibility: Visibility) -> str:
        """Why the rows may be out of date, as far as this caller may know.

        The error of a query can quote rows, so callers who do not see all of them get no details.
        """
        warning = self.policy.problem or self.warning
        if not warning or not visibility.is_restricted:
            return warning
        return "the view has a problem; ask an administrator"

    def warning_json(self, visibility: Visibility) -> bytes:
        """`"warning":"…",`, or nothing."""
        warning = self.warning_for(visibility)
        return b'"warning":%b,' % encode(warning) if warning else b""

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
        self._fit_policy()
        self._start(epoch, table)

    def _start(self, epoch: str, table: ViewTable) -> None:
        self.epoch, self.table = epoch, table
        self.restarts += 1
        self._shared_rows = None
        self.snapshots.clear()
        for encoding in self._encodings.values():
            encoding.clear()
        for indexed in self._groups:
            if indexed is not None:
                indexed.concerned.start(table.ring.end)
        for listener in self.listeners:
            listener(self, [])
        self.wake()

    def apply(self, records: Iterable[Record]) -> None:
        """Apply records, each partition's in order, and wake the subscribers."""
        apply, changes = self.table.apply, []
        concerned: set[Encoding | None] = {None}
        for record in records:
            change = apply(
                record.partition, record.offset, record.timestamp, record.key, record.value
            )
            if change is not None:
                changes.append(change)
                if self._index:
                    concerned |= self._find_concerned(change)
        self.metrics.count(changes)
        if changes:
            for listener in self.listeners:
                listener(self, changes)
        self._unseen_changes += len(changes)
        if self._unseen_changes > self.table.ring.capacity // 4:
            # Nobody's cursor may leave the ring for changes that do not concern it.
            self.wake()
        else:
            self._wake([each for group in concerned for each in self._groups.get(group, ())])

    def subscribe(self, wake: Callable[[], None], encoding: Encoding) -> None:
        """Call `wake` when there are changes that may be for clients with this encoding."""
        self.unsubscribe(wake)
        self.subscribers[wake] = encoding
        if encoding.equality is None:
            self._groups[None].add(wake)
            return
        if encoding not in self._groups:
            self._groups[encoding] = set()
            self._index.add(encoding)
            encoding.concerned.start(self.table.ring.end)
        self._groups[encoding].add(wake)

    def unsubscribe(self, wake: Callable[[], None]) -> None:
        encoding = self.subscribers.pop(wake, None)
        if encoding is None:
            return
        group = self._groups[None if encoding.equality is None else encoding]
        group.discard(wake)
        if not group and encoding.equality is not None:
            del self._groups[encoding]
            self._index.discard(encoding)
            encoding.concerned.stop()

    def _find_concerned(self, change: ViewChange) -> set[Encoding]:
        found, number = self._index.find(change), self.table.ring.end - 1
        for encoding in found:
            encoding.concerned.add(number)
        return found

    def wake(self) -> None:
        self._unseen_changes = 0
        self._wake(list(self.subscribers))

    def _wake(self, subscribers: Iterable[Callable[[], None]]) -> None:
        for subscriber in subscribers:
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
            self._fit_policy()
            if (self._is_exact(columns), self.is_stateful) != before and not len(self.table):
                self.reset(self.epoch, dict(enumerate(self.table.offsets)))
            for listener in self.listeners:
                listener(self, [])

    def _columns_of(self, description: ViewDescription) -> tuple[ViewColumn, ...]:
        return description.shown_columns

    def _fit_policy(self) -> None:
        self.policy.fit(self.columns)

    def encoding(
        self,
        where: str | None,
        select: tuple[str, ...] | None,
        lineage: bool,
        visibility: Visibility = SEES_ALL,
    ) -> Encoding:
        """The encoding for a filter and columns; QueryError if they do not fit the view.

        Only columns that the caller sees can be filtered by and selected.
        """
        key = (where, select, lineage, visibility, self.columns)
        encoding = self._encodings.get(key)
        if encoding is None:
            if (where or select or visibility.is_restricted) and not self.columns:
                raise LogError(
                    f"{self.kind} {self.name} is not described yet, so its rows cannot be tested",
                    remedy="start analyze, or try again in a moment",
                )
            columns = self.visible_columns(visibility)
            encoding = self._encodings[key] = Encoding(
                self._predicate(where, columns) if where else None,
                self._projection(select, columns, visibility, lineage=lineage),
                columns=columns,
                visible=self._visible(visibility),
                visible_key=self._visible_key(visibility),
                equality=self._equality(where, columns, visibility),
            )
        return encoding

    def _equality(
        self, where: str | None, columns: tuple[ViewColumn, ...], visibility: Visibility
    ) -> Equality | None:
        """A value that all rows for such clients have, by their filter or by the policy."""
        if self.kind != "view":  # a stream's events may have other spellings of a value
            return None
        found = find_equality(parse(where, "where"), columns) if where else None
        if found is None and visibility.rows is not None:
            found = find_equality(parse_rows(visibility.rows), self.columns)
        return found

    def empty_encoding(self) -> Encoding:
        """An encoding of no row, for a filter that no longer fits the view."""
        return Encoding(_no_row, without_lineage, columns=self.columns)

    def visible_columns(self, visibility: Visibility) -> tuple[ViewColumn, ...]:
        """The columns that exist for a caller."""
        hidden = visibility.hidden
        return without_columns(self.columns, hidden) if hidden else self.columns

    def _visible(self, visibility: Visibility) -> Predicate | None:
        if self.policy.problem and visibility.is_restricted:
            return _no_row
        if visibility.rows is None:
            return None
        try:
            return compile_rows(visibility.rows, self.columns, self.kind == "view")
        except QueryError:  # of a client that was there before the view's columns changed
            return _no_row

    def _visible_key(self, visibility: Visibility) -> Callable[[str], bool] | None:
        """A test of keys, if the policy uses only key columns."""
        if visibility.rows is None or self.key is None:
            return None
        names = self.key
        columns = tuple(column for column in self.columns if column.name in names)
        try:
            visible = compile_rows(visibility.rows, columns)
        except QueryError:  # it uses other columns
            return None
        return lambda key: visible(dict(zip(names, msgspec.json.decode(key), strict=False)))

    def _predicate(self, where: str, columns: tuple[ViewColumn, ...]) -> Predicate:
        return compile_where(where, columns, self.kind == "view")

    def _projection(
        self,
        select: tuple[str, ...] | None,
        columns: tuple[ViewColumn, ...],
        visibility: Visibility,
        *,
        lineage: bool,
    ) -> Projection:
        if select:
            return compile_select(select, columns)
        if visibility.hidden:
            return only(columns, visibility.hidden, lineage=lineage)
        return with_lineage if lineage else without_lineage

    def _is_exact(self, columns: tuple[ViewColumn, ...]) -> bool:
        return is_exact(columns)

    def scan_rows(
        self, encoding: Encoding, order: str | None = None, limit: int | None = None
    ) -> RowScan:
        """A scan of the current rows, which has not begun."""
        if not self.table.keyed:
            newest, deadline = list(self.table.newest), self.deadline()
            return RowScan(None, newest, encoding, deadline, order=order, limit=limit)
        shared = self.rows_now()
        return RowScan(
            shared.keys,
            shared.rows,
            encoding,
            self.deadline(),
            order=order,
            limit=limit,
            held=shared,
        )

    def prepare_rows(
        self, encoding: Encoding, order: str | None = None, limit: int | None = None
    ) -> Callable[[], SelectedRows]:
        """A function that selects from the current rows. Call it once, in any thread.

        Rows of a table are sorted by key unless there is an order; of a stream they are the newest.
        The function raises QueryError if the filter or the order takes too long.
        """
        scan = self.scan_rows(encoding, order, limit)

        def select() -> SelectedRows:
            for _ in scan.steps():
                pass
            return SelectedRows(list(scan), scan.total)

        return select

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
        is_filtered = encoding.is_filtered or order
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


def _no_row(row: Mapping[str, Any]) -> bool:
    return False
