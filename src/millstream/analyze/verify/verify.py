"""Holds a live view against its own query run in batch over the log, at the same point.

A view moves while it is looked at. So first the view's topic is read to its end, then the log's
ends are taken, and the batch reads up to them: whatever the view held before that, the batch must
have too. The view's topic is read on meanwhile: each of its rows says how many events are in it
(or which), so that the row to compare with is the one with just those events in. A group that
jumps over that row is looked at again in another round.

What the live query goes on without, being broken or shed, is noted beside its checkpoint. How much
of its input it sheds is decided on the way, so the notes are read once it has come to those ends.

Where the query's rows are shown otherwise, or entered into a ledger, the same is done with what was
made of them; `panes.told` and `panes.entered` say what must hold.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from millstream.analyze.history.history import LogRange, find_log_range
from millstream.analyze.planning.planned_query import PlannedQuery
from millstream.analyze.recovery.checkpoint import checkpoint_folder
from millstream.analyze.recovery.checkpoint_notes import apply_notes, read_notes
from millstream.analyze.recovery.progress import committed_offsets
from millstream.analyze.triggers.tasks import ledger_spec
from millstream.analyze.verify.comparison import comparison
from millstream.analyze.verify.follower import PAUSE, Follower
from millstream.analyze.verify.ledger_check import LedgerCheck
from millstream.analyze.verify.recompute import Mark, Marks, Row, Wanted, recompute
from millstream.analyze.verify.result import Difference, VerifyResult
from millstream.analyze.verify.shown_check import ShownCheck
from millstream.errors import MillstreamError
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.pipeline.trigger import When
from millstream.store.views.table import Table
from millstream.values.clock import now_ms, to_ms
from millstream.values.hidden_columns import RECEIVED

SKETCHES = 0.05  # how far an estimate may be from itself, merged in another order
_ROUNDS = 3


def verify(
    query: PlannedQuery,
    log: LogSettings,
    *,
    checkpoints: Path | None = None,
    tolerance: float = SKETCHES,
    patience: float = 30.0,
    report: Callable[[str], None] = lambda words: None,
) -> VerifyResult:
    """Recompute a view up to now and compare every row; blocks.

    `checkpoints` are those of the process that runs the query, if it may go on without some of its
    input. `patience` is how many seconds the live view may take without any news to come to where
    the log's end was. `report` is told in words what is being done.
    """
    looked_up = [name for name, how in query.view.reads.items() if how == "reference"]
    if looked_up:
        raise MillstreamError(
            f"cannot verify {query.view.name}: it looks up {looked_up[0]} as that was when each "
            "event came, which the log does not tell",
            remedy=f"verify {looked_up[0]}",
        )
    verdict = _Round(query, log, checkpoints, tolerance, report).run(patience)
    while verdict.moved and verdict.rounds < _ROUNDS:
        report(f"{verdict.moved:,} rows moved on; once more")
        rounds = verdict.rounds + 1
        verdict = _Round(query, log, checkpoints, tolerance, report).run(patience)
        verdict.rounds = rounds
    return verdict


class _Round:
    def __init__(
        self,
        query: PlannedQuery,
        log: LogSettings,
        checkpoints: Path | None,
        tolerance: float,
        report: Callable[[str], None],
    ) -> None:
        self._query, self._log, self._report = query, log, report
        self._checkpoints = checkpoints
        self._marks = Marks(query)
        self._same = comparison(query.rows, query.plan.columns, tolerance)

    def run(self, patience: float) -> VerifyResult:
        self._report(f"reading {self._query.plan.query_topic}")
        with contextlib.ExitStack() as stack:
            told, entered = self._told(stack), self._entered(stack)
            self._written = written = _Written(self._log, self._query)
            stack.callback(written.close)
            for each in (told, entered):  # the end of the path first: the log must have all of it
                if each is not None:
                    each.snapshot(patience)
            before = written.snapshot(patience)
            past = find_log_range(self._log, self._query.plan.reads)
            query = self._as_noted(past, patience)
            self._report(f"recomputing over {past.records:,} records")
            wanted = recompute(query, self._log, past)
            self._report(f"comparing {len(wanted):,} rows")
            written.await_rows(wanted, patience)
            verdict = self._judge(past, before, wanted, written)
            self._judge_panes(verdict, wanted, told, entered, patience)
            return verdict

    def _as_noted(self, past: LogRange, patience: float) -> PlannedQuery:
        """The query over what the live one took of the past."""
        plan = self._query.plan
        if self._checkpoints is None:
            return self._query
        checkpoint = checkpoint_folder(self._checkpoints, plan)
        if plan.sheds_after_ms is not None:
            self._report(f"waiting for {plan.name} to read {past.records:,} records")
            _await_read(checkpoint, past, patience)
        return replace(
            self._query, batch_rows=apply_notes(self._query.batch_rows, read_notes(checkpoint))
        )

    def _told(self, stack: contextlib.ExitStack) -> ShownCheck | None:
        plan, trigger = self._query.plan, self._query.view.trigger
        if plan.output is None or plan.output.is_direct:
            return None
        told = ShownCheck(self._log, plan, plan.output, trigger, self._same)
        stack.callback(told.close)
        return told

    def _entered(self, stack: contextlib.ExitStack) -> LedgerCheck | None:
        plan = self._query.plan
        if (books := ledger_spec(plan)) is None:
            return None
        app, _, _ = plan.topic.partition(".")
        entered = LedgerCheck(self._log, app, plan, books, self._same)
        stack.callback(entered.close)
        return entered

    def _judge_panes(
        self,
        verdict: VerifyResult,
        wanted: Wanted,
        told: ShownCheck | None,
        entered: LedgerCheck | None,
        patience: float,
    ) -> None:
        # Views with panes group: of each key there is one row.
        rows = {key: row for key, each in wanted.items() for row in each.values()}
        written, may_lack = self._written, self._may_lack(verdict.past)
        found = []
        if told is not None:
            found.append(told.compare(rows, written.rows, may_lack, patience))
        if entered is not None:
            is_picked = told is not None and isinstance(self._query.view.trigger, When)
            was_shown = told.was_shown if told is not None and is_picked else lambda key: True
            found.append(entered.compare(rows, written.last, was_shown, may_lack, patience))
        for part, differences in found:
            verdict.parts.append(part)
            verdict.differences += differences

    def _judge(
        self, past: LogRange, before: Mapping[str, Row], wanted: Wanted, written: _Written
    ) -> VerifyResult:
        verdict = VerifyResult(self._query.view.name, past, self._same)
        for key, rows in wanted.items():
            self._judge_row(verdict, key, rows, before.get(key), written)
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
        verdict: VerifyResult,
        key: str,
        rows: Mapping[Mark, Row],
        before: Row | None,
        written: _Written,
    ) -> None:
        newest = rows[max(rows, key=str)]
        if before is not None and self._marks.is_beyond(self._marks.mark(before), rows):
            if self._may_lack(verdict.past):
                verdict.older += 1
            else:
                found = Difference("ahead of the log", key, before, newest, self._off(before, rows))
                verdict.differences.append(found)
        elif (live := written.matched.get(key)) is not None:
            recomputed = rows.get(self._marks.mark(live) or "", newest)
            if columns := self._same.differing(live, recomputed):
                found = Difference("other values", key, live, recomputed, columns)
                verdict.differences.append(found)
            else:
                verdict.same += 1
        elif (live := written.rows.get(key)) is None:
            if key in written.ended or self._is_over(newest) or self._is_trimmed():
                verdict.expired += 1
            elif self._is_awaited(newest):
                verdict.awaited += 1
            else:
                verdict.differences.append(Difference("missing", key, None, newest))
        elif self._marks.is_beyond(self._marks.mark(live), rows):
            verdict.moving += 1
        else:
            found = Difference("behind", key, live, newest, self._off(live, rows))
            verdict.differences.append(found)

    def _off(self, live: Row, rows: Mapping[Mark, Row]) -> tuple[str, ...]:
        return min((self._same.differing(live, row) for row in rows.values()), key=len)

    def _may_lack(self, past: LogRange) -> bool:
        """Whether the view may rightly hold what the log has no more: retention, or compaction."""
        return not past.is_whole or any(".view." in topic for topic in past.offsets)

    def _is_trimmed(self) -> bool:
        return self._query.plan.key is None and any(self._written.held_from.values())

    def _is_awaited(self, row: Row) -> bool:
        """Whether the row comes only when it is final, and no later window's has come so far."""
        if self._query.plan.output_mode != "append" or (end := self._end(row)) is None:
            return False
        return all(end > (self._end(each) or 0) for each in self._written.last.values())

    def _is_over(self, row: Row) -> bool:
        """Whether `keep` has ended the row."""
        keep = self._query.plan.keep_ms
        if keep is None:
            return False
        if (end := self._end(row)) is None:
            moment = row.get(RECEIVED)
            end = to_ms(moment) if isinstance(moment, str) else None
        return end is not None and end + keep <= now_ms()

    def _end(self, row: Row) -> float | None:
        """When the row's window is over, in milliseconds since the epoch."""
        window = row.get(self._query.plan.window or "")
        end = window.get("end") if isinstance(window, dict) else None
        return to_ms(end) if isinstance(end, str) else None


def _await_read(checkpoint: Path, past: LogRange, patience: float) -> None:
    """Return when the query has read all of the past, or does not get on."""
    read, news = committed_offsets(checkpoint).offsets, time.monotonic()
    while not _has(read, past) and time.monotonic() - news < patience:
        time.sleep(PAUSE)
        if (further := committed_offsets(checkpoint).offsets) != read:
            read, news = further, time.monotonic()


def _has(read: Mapping[str, Mapping[str, int]], past: LogRange) -> bool:
    return all(
        read.get(topic, {}).get(str(partition), 0) >= end
        for topic, span in past.offsets.items()
        for partition, (start, end) in span.items()
        if start < end
    )


class _Written(Follower):
    """The query's rows as a server has them, and which of them were the ones to compare with."""

    def __init__(self, log: LogSettings, query: PlannedQuery) -> None:
        self._marks = Marks(query)
        self._table = Table(keyed=query.plan.key is not None, numbers="decimal", recent=1, newest=1)
        self._passed: list[tuple[str, Row]] | None = None  # from the snapshot on; None: not noted
        self._wanted: Wanted = {}
        self.rows: dict[str, Row] = {}
        self.last: dict[str, Row] = {}  # also of keys that are gone
        self.matched: dict[str, Row] = {}
        self.ended: set[str] = set()
        super().__init__(log, query.plan.query_topic)

    def snapshot(self, patience: float) -> dict[str, Row]:
        """The rows that the view holds by now."""
        self.catch_up(patience)
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
            time.sleep(PAUSE)
            with self._lock:
                waiting = {key for key in waiting if not self._is_settled(key)}

    def _is_settled(self, key: str) -> bool:
        if key in self.matched or key in self.ended:
            return True
        row = self.rows.get(key)
        return row is not None and self._marks.is_beyond(self._marks.mark(row), self._wanted[key])

    def _take(self, record: Record) -> None:
        change = self._table.apply(
            record.partition, record.offset, record.timestamp, record.key, record.value
        )
        if change is None:
            return
        self._news = time.monotonic()
        if change.row is None:
            assert change.key is not None
            self.rows.pop(change.key, None)
            self.ended.add(change.key)
            return
        key = self._marks.identity(change.key, change.row)
        self.rows[key] = change.row
        if change.key is not None:
            self.last[key] = change.row
        self.ended.discard(key)
        if self._passed is not None:
            self._passed.append((key, change.row))
        self._match(key, change.row)

    def _match(self, key: str, row: Row) -> None:
        if self._marks.mark(row) in self._wanted.get(key, ()):
            self.matched.setdefault(key, row)
