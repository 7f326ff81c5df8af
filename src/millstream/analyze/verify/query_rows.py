"""Follows the rows that a view's query writes, and finds those to compare."""

from __future__ import annotations

import time

from millstream.analyze.planning.planned_query import PlannedQuery
from millstream.analyze.verify.follower import PAUSE, TopicFollower
from millstream.analyze.verify.recompute import ExpectedRows, Row, RowVersions
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.store.views.table import ViewTable


class QueryRows(TopicFollower):
    """The query's rows as a server has them, and those with the versions of expected rows."""

    def __init__(self, log: LogSettings, query: PlannedQuery) -> None:
        self._versions = RowVersions(query)
        self._table = ViewTable(
            keyed=query.plan.key is not None, numbers="decimal", recent=1, newest=1
        )
        self._passed: list[tuple[str, Row]] | None = None  # rows since the snapshot; None: none yet
        self._expected: ExpectedRows = {}
        self.rows: dict[str, Row] = {}
        self.last: dict[str, Row] = {}  # also of deleted keys
        self.matched: dict[str, Row] = {}  # rows with the version of an expected row
        self.deleted: set[str] = set()
        super().__init__(log, query.plan.query_topic)

    def snapshot(self, patience: float) -> dict[str, Row]:
        """The rows that the view holds by now."""
        self.catch_up(patience)
        with self._lock:
            self._passed = list(self.rows.items())
            return dict(self.rows)

    def await_rows(self, expected: ExpectedRows, patience: float) -> None:
        """Return when the view has reached or passed each of the rows, or does not change."""
        with self._lock:
            self._expected = expected
            for key, row in self._passed or ():
                self._match(key, row)
            self._passed = None
            waiting = set(expected) - self.matched.keys()
            self._last_change = time.monotonic()
        while waiting and time.monotonic() - self._last_change < patience:
            time.sleep(PAUSE)
            with self._lock:
                waiting = {key for key in waiting if not self._has_reached(key)}

    def _has_reached(self, key: str) -> bool:
        if key in self.matched or key in self.deleted:
            return True
        row = self.rows.get(key)
        return row is not None and self._versions.is_ahead(row, self._expected[key])

    def _apply(self, record: Record) -> None:
        change = self._table.apply(*record[1:6])
        if change is None:
            return
        self._last_change = time.monotonic()
        if change.row is None:
            assert change.key is not None
            self.rows.pop(change.key, None)
            self.deleted.add(change.key)
            return
        key = self._versions.identity(change.key, change.row)
        self.rows[key] = change.row
        if change.key is not None:
            self.last[key] = change.row
        self.deleted.discard(key)
        if self._passed is not None:
            self._passed.append((key, change.row))
        self._match(key, change.row)

    def _match(self, key: str, row: Row) -> None:
        if self._versions.version(row) in self._expected.get(key, ()):
            self.matched.setdefault(key, row)
