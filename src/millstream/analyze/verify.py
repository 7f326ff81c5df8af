"""Holds a live view against its own query run in batch over the log, at the same point.

A view moves while it is looked at. So first the view's topic is read to its end, then the log's
ends are taken, and the batch reads up to them: whatever the view held before that, the batch must
have too. The view's topic is read on meanwhile: each of its rows says how many events are in it
(or which), so that the row to compare with is the one with just those events in. A group that
jumps over that row is looked at again in another round.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from millstream.analyze.history import Past, take_past
from millstream.analyze.planner import Query
from millstream.analyze.recompute import Mark, Marks, Row, Wanted, recompute
from millstream.analyze.sameness import Sameness, sameness
from millstream.errors import MillstreamError
from millstream.log.consumer import Reader, bounds
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.store.table import Table

SKETCHES = 0.05  # how far an estimate may be from itself, merged in another order
_ROUNDS = 3
_PAUSE = 0.05
Kind = Literal["other values", "missing", "not in the log", "behind", "ahead of the log"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One row that is not as it must be."""

    kind: Kind
    key: str
    live: Row | None
    recomputed: Row | None
    columns: tuple[str, ...] = ()  # that differ


@dataclass(slots=True)
class Verdict:
    """What came of a comparison."""

    view: str
    past: Past
    sameness: Sameness
    same: int = 0
    differences: list[Difference] = field(default_factory=list)
    expired: int = 0  # rows that the view kept for a time only
    older: int = 0  # rows with events in that the log no longer has
    moving: int = 0  # groups that changed faster than they could be compared
    rounds: int = 1


def verify(
    query: Query,
    log: LogSettings,
    *,
    tolerance: float = SKETCHES,
    patience: float = 30.0,
    report: Callable[[str], None] = lambda words: None,
) -> Verdict:
    """Recompute a view up to now and compare every row; blocks.

    `patience` is how many seconds the live view may take without any news to come to where the
    log's end was. `report` is told in words what is being done.
    """
    looked_up = [name for name, how in query.view.reads.items() if how == "reference"]
    if looked_up:
        raise MillstreamError(
            f"cannot verify {query.view.name}: it looks up {looked_up[0]} as that was when each "
            "event came, which the log does not tell",
            remedy=f"verify {looked_up[0]}",
        )
    verdict = _Round(query, log, tolerance, report).run(patience)
    while verdict.moving and verdict.rounds < _ROUNDS:
        report(f"{verdict.moving:,} rows moved on; once more")
        rounds = verdict.rounds + 1
        verdict = _Round(query, log, tolerance, report).run(patience)
        verdict.rounds = rounds
    return verdict


class _Round:
    def __init__(
        self, query: Query, log: LogSettings, tolerance: float, report: Callable[[str], None]
    ) -> None:
        self._query, self._log, self._report = query, log, report
        self._marks = Marks(query)
        self._same = sameness(query.rows, query.plan.columns, tolerance)
        self._held_from = {p: low for p, (low, _) in bounds(log, query.plan.written).items()}

    def run(self, patience: float) -> Verdict:
        self._report(f"reading {self._query.plan.written}")
        shown = _Shown(self._log, self._query, self._held_from)
        try:
            before = shown.snapshot(patience)
            past = take_past(self._log, self._query.plan.reads)
            self._report(f"recomputing over {past.records:,} records")
            wanted = recompute(self._query, self._log, past)
            self._report(f"comparing {len(wanted):,} rows")
            shown.await_rows(wanted, patience)
            return self._judge(past, before, wanted, shown)
        finally:
            shown.close()

    def _judge(
        self, past: Past, before: Mapping[str, Row], wanted: Wanted, shown: _Shown
    ) -> Verdict:
        verdict = Verdict(self._query.view.name, past, self._same)
        for key, rows in wanted.items():
            self._judge_row(verdict, key, rows, before.get(key), shown)
        for key, row in before.items():
            if key in wanted:
                continue
            if self._may_lack(past):
                verdict.older += 1
            else:
                verdict.differences.append(Difference("not in the log", key, row, None))
        return verdict

    def _judge_row(
        self,
        verdict: Verdict,
        key: str,
        rows: Mapping[Mark, Row],
        before: Row | None,
        shown: _Shown,
    ) -> None:
        newest = rows[max(rows, key=str)]
        if before is not None and self._marks.is_beyond(self._marks.mark(before), rows):
            if self._may_lack(verdict.past):
                verdict.older += 1
            else:
                found = Difference("ahead of the log", key, before, newest, self._off(before, rows))
                verdict.differences.append(found)
        elif (live := shown.matched.get(key)) is not None:
            recomputed = rows.get(self._marks.mark(live) or "", newest)
            if columns := self._same.differing(live, recomputed):
                found = Difference("other values", key, live, recomputed, columns)
                verdict.differences.append(found)
            else:
                verdict.same += 1
        elif (live := shown.rows.get(key)) is None:
            if key in shown.ended or self._is_over(newest) or self._is_trimmed():
                verdict.expired += 1
            else:
                verdict.differences.append(Difference("missing", key, None, newest))
        elif self._marks.is_beyond(self._marks.mark(live), rows):
            verdict.moving += 1
        else:
            found = Difference("behind", key, live, newest, self._off(live, rows))
            verdict.differences.append(found)

    def _off(self, live: Row, rows: Mapping[Mark, Row]) -> tuple[str, ...]:
        return min((self._same.differing(live, row) for row in rows.values()), key=len)

    def _may_lack(self, past: Past) -> bool:
        """Whether the view may rightly hold what the log has no more: retention, or compaction."""
        return not past.is_whole or any(".view." in topic for topic in past.spans)

    def _is_trimmed(self) -> bool:
        return self._query.plan.key is None and any(self._held_from.values())

    def _is_over(self, row: Row) -> bool:
        """Whether `keep` has ended the row."""
        keep = self._query.plan.keep_ms
        if keep is None:
            return False
        window = row.get(self._query.plan.window or "")
        moment = window.get("end") if isinstance(window, dict) else row.get("_received_at")
        return isinstance(moment, str) and _milliseconds(moment) + keep <= time.time() * 1000


class _Shown:
    """The view as a server shows it, and which of its rows were the ones to compare with."""

    def __init__(self, log: LogSettings, query: Query, starts: Mapping[int, int]) -> None:
        self._marks = Marks(query)
        self._table = Table(keyed=query.plan.key is not None, numbers="decimal", recent=1, newest=1)
        self._lock = threading.Lock()
        self._passed: list[tuple[str, Row]] | None = None  # from the snapshot on; None: not noted
        self._wanted: Wanted = {}
        self._news = time.monotonic()
        self.rows: dict[str, Row] = {}
        self.matched: dict[str, Row] = {}
        self.ended: set[str] = set()
        topic = query.plan.written
        self._reader = Reader(log, {(topic, p): low for p, low in starts.items()}, self._take)

    def close(self) -> None:
        self._reader.close()
        self._reader.join()

    def snapshot(self, patience: float) -> dict[str, Row]:
        """The rows that the view holds by now."""
        while not self._reader.is_caught_up:
            if time.monotonic() - self._news > patience:
                raise MillstreamError("cannot read the view's topic to its end", remedy="see Kafka")
            time.sleep(_PAUSE)
        with self._lock:
            self._passed = list(self.rows.items())
            return dict(self.rows)

    def await_rows(self, wanted: Wanted, patience: float) -> None:
        """Return when the view has come to each of the rows, or beyond, or stands still."""
        with self._lock:
            self._wanted = wanted
            for key, row in self._passed or ():
                self._match(key, row)
            self._passed = None
            waiting = set(wanted) - self.matched.keys()
            self._news = time.monotonic()
        while waiting and time.monotonic() - self._news < patience:
            time.sleep(_PAUSE)
            with self._lock:
                waiting = {key for key in waiting if not self._is_settled(key)}

    def _is_settled(self, key: str) -> bool:
        if key in self.matched or key in self.ended:
            return True
        row = self.rows.get(key)
        return row is not None and self._marks.is_beyond(self._marks.mark(row), self._wanted[key])

    def _take(self, records: list[Record]) -> None:
        with self._lock:
            for record in records:
                change = self._table.apply(
                    record.partition, record.offset, record.timestamp, record.key, record.value
                )
                if change is None:
                    continue
                self._news = time.monotonic()
                if change.row is None:
                    assert change.key is not None
                    self.rows.pop(change.key, None)
                    self.ended.add(change.key)
                    continue
                key = self._marks.identity(change.key, change.row)
                self.rows[key] = change.row
                self.ended.discard(key)
                if self._passed is not None:
                    self._passed.append((key, change.row))
                self._match(key, change.row)

    def _match(self, key: str, row: Row) -> None:
        if self._marks.mark(row) in self._wanted.get(key, ()):
            self.matched.setdefault(key, row)


def _milliseconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp() * 1000


def content(verdict: Verdict) -> dict[str, Any]:
    """The verdict as JSON has it."""
    return {
        "view": verdict.view,
        "agrees": not verdict.differences,
        "same": verdict.same,
        "different": len(verdict.differences),
        "expired": verdict.expired,
        "older_than_the_log": verdict.older,
        "still_moving": verdict.moving,
        "rounds": verdict.rounds,
        "records": verdict.past.records,
        "up_to": {
            topic: {str(partition): end for partition, (_, end) in span.items()}
            for topic, span in verdict.past.spans.items()
        },
        "tolerances": dict(verdict.sameness.tolerances),
        "differences": [
            {
                "kind": each.kind,
                "key": each.key,
                "columns": list(each.columns),
                "live": each.live,
                "recomputed": each.recomputed,
            }
            for each in verdict.differences
        ],
    }
