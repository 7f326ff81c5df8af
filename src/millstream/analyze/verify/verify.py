"""Compares a live view with its own query run in batch over the log, at the same point.

The view changes meanwhile. So first the view's topic is read to its end, then the ends of the log
are fixed, and the batch reads up to them: the batch must have everything that the view had before.
The view's topic is read on. Each of its rows says how many events are in it, or which ones. So the
row with exactly the batch's events is found and compared. If a group jumps over that row, it is
compared in another round.

The notes beside the live query's checkpoint say which events it left out, because they were broken
or shed. What it sheds is decided while it runs. So the notes are read once it has read up to the
fixed ends.

If the view has a trigger, an accumulation or a ledger, `shown_check` and `ledger_check` compare the
shown rows and the entries in the same way.
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
from millstream.analyze.verify.comparison import comparison_of
from millstream.analyze.verify.follower import PAUSE
from millstream.analyze.verify.ledger_check import LedgerCheck
from millstream.analyze.verify.query_rows import QueryRows
from millstream.analyze.verify.recompute import (
    ExpectedRows,
    Row,
    RowVersions,
    Version,
    recompute,
)
from millstream.analyze.verify.result import Difference, VerifyResult
from millstream.analyze.verify.shown_check import ShownCheck
from millstream.errors import MillstreamError
from millstream.log.settings import LogSettings
from millstream.pipeline.trigger import When
from millstream.values.clock import now_ms, to_ms
from millstream.values.hidden_columns import RECEIVED

SKETCHES = 0.05  # how much an estimate may differ if its parts are merged in another order
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

    `checkpoints` are those of the process that runs the query, if it may leave out some of its
    input. `patience`: after so many seconds without a change the live view counts as stuck.
    `report` gets the current step in words.
    """
    looked_up = [name for name, how in query.view.reads.items() if how == "reference"]
    if looked_up:
        raise MillstreamError(
            f"cannot verify {query.view.name}: it looks up {looked_up[0]} as that was when each "
            "event came, which the log does not tell",
            remedy=f"verify {looked_up[0]}",
        )
    result = _Round(query, log, checkpoints, tolerance, report).run(patience)
    while result.moved and result.rounds < _ROUNDS:
        report(f"{result.moved:,} rows changed meanwhile; once more")
        rounds = result.rounds + 1
        result = _Round(query, log, checkpoints, tolerance, report).run(patience)
        result.rounds = rounds
    return result


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
        self._versions = RowVersions(query)
        self._comparison = comparison_of(query.rows, query.plan.columns, tolerance)

    def run(self, patience: float) -> VerifyResult:
        self._report(f"reading {self._query.plan.query_topic}")
        with contextlib.ExitStack() as stack:
            shown, ledger = self._shown_check(stack), self._ledger_check(stack)
            self._live = live = QueryRows(self._log, self._query)
            stack.callback(live.close)
            for each in (shown, ledger):  # before the query's rows, which must have all of theirs
                if each is not None:
                    each.snapshot(patience)
            before = live.snapshot(patience)
            log_range = find_log_range(self._log, self._query.plan.reads)
            query = self._with_notes(log_range, patience)
            self._report(f"recomputing over {log_range.records:,} records")
            expected = recompute(query, self._log, log_range)
            self._report(f"comparing {len(expected):,} rows")
            live.await_rows(expected, patience)
            result = self._compare(log_range, before, expected)
            self._compare_parts(result, expected, shown, ledger, patience)
            return result

    def _shown_check(self, stack: contextlib.ExitStack) -> ShownCheck | None:
        plan, trigger = self._query.plan, self._query.view.trigger
        if plan.output is None or plan.output.is_direct:
            return None
        check = ShownCheck(self._log, plan, plan.output, trigger, self._comparison)
        stack.callback(check.close)
        return check

    def _ledger_check(self, stack: contextlib.ExitStack) -> LedgerCheck | None:
        plan = self._query.plan
        if (spec := ledger_spec(plan)) is None:
            return None
        app, _, _ = plan.topic.partition(".")
        check = LedgerCheck(self._log, app, plan, spec, self._comparison)
        stack.callback(check.close)
        return check

    def _with_notes(self, log_range: LogRange, patience: float) -> PlannedQuery:
        """The query without the events that the live one left out."""
        plan = self._query.plan
        if self._checkpoints is None:
            return self._query
        checkpoint = checkpoint_folder(self._checkpoints, plan)
        if plan.sheds_after_ms is not None:
            self._report(f"waiting for {plan.name} to read {log_range.records:,} records")
            _await_read(checkpoint, log_range, patience)
        rows = apply_notes(self._query.batch_rows, read_notes(checkpoint))
        return replace(self._query, batch_rows=rows)

    def _compare(
        self, log_range: LogRange, before: Mapping[str, Row], expected: ExpectedRows
    ) -> VerifyResult:
        result = VerifyResult(self._query.view.name, log_range, self._comparison)
        for key, rows in expected.items():
            self._compare_row(result, key, rows, before.get(key))
        for key, row in before.items():
            if key in expected:
                continue
            if self._may_lack(log_range):
                result.older += 1
            else:
                result.differences.append(Difference("not in the log", key, row, None))
        return result

    def _compare_row(
        self, result: VerifyResult, key: str, rows: Mapping[Version, Row], before: Row | None
    ) -> None:
        newest = rows[max(rows, key=str)]
        if before is not None and self._versions.is_ahead(before, rows):
            if self._may_lack(result.log_range):
                result.older += 1
            else:
                columns = self._differing(before, rows)
                found = Difference("ahead of the log", key, before, newest, columns)
                result.differences.append(found)
        elif (live := self._live.matched.get(key)) is not None:
            recomputed = rows.get(self._versions.version(live) or "", newest)
            if columns := self._comparison.differing(live, recomputed):
                found = Difference("other values", key, live, recomputed, columns)
                result.differences.append(found)
            else:
                result.same += 1
        elif (live := self._live.rows.get(key)) is None:
            if key in self._live.deleted or self._has_expired(newest) or self._is_trimmed():
                result.expired += 1
            elif self._is_not_due(newest):
                result.not_due += 1
            else:
                result.differences.append(Difference("missing", key, None, newest))
        elif self._versions.is_ahead(live, rows):
            result.moving += 1
        else:
            found = Difference("behind", key, live, newest, self._differing(live, rows))
            result.differences.append(found)

    def _compare_parts(
        self,
        result: VerifyResult,
        expected: ExpectedRows,
        shown: ShownCheck | None,
        ledger: LedgerCheck | None,
        patience: float,
    ) -> None:
        # Views with shown rows or a ledger group: there is one row for each key.
        rows = {key: row for key, each in expected.items() for row in each.values()}
        live, may_lack = self._live, self._may_lack(result.log_range)
        found = []
        if shown is not None:
            found.append(shown.compare(rows, live.rows, may_lack, patience))
        if ledger is not None:
            has_condition = isinstance(self._query.view.trigger, When)
            was_shown = shown.was_shown if shown and has_condition else lambda key: True
            found.append(ledger.compare(rows, live.last, was_shown, may_lack, patience))
        for part, differences in found:
            result.parts.append(part)
            result.differences += differences

    def _differing(self, live: Row, rows: Mapping[Version, Row]) -> tuple[str, ...]:
        return min((self._comparison.differing(live, row) for row in rows.values()), key=len)

    def _may_lack(self, log_range: LogRange) -> bool:
        """Whether retention or compaction may have deleted events that are in the view's rows."""
        return not log_range.is_whole or any(".view." in topic for topic in log_range.offsets)

    def _is_trimmed(self) -> bool:
        return self._query.plan.key is None and any(self._live.held_from.values())

    def _is_not_due(self, row: Row) -> bool:
        """Whether rows come once, when they are final, and no row of a later window has come."""
        if self._query.plan.output_mode != "append" or (end := self._window_end(row)) is None:
            return False
        return all(end > (self._window_end(each) or 0) for each in self._live.last.values())

    def _has_expired(self, row: Row) -> bool:
        """Whether the row is older than the view's `keep`."""
        keep = self._query.plan.keep_ms
        if keep is None:
            return False
        if (end := self._window_end(row)) is None:
            moment = row.get(RECEIVED)
            end = to_ms(moment) if isinstance(moment, str) else None
        return end is not None and end + keep <= now_ms()

    def _window_end(self, row: Row) -> float | None:
        """The end of the row's window, in milliseconds since the epoch."""
        window = row.get(self._query.plan.window or "")
        end = window.get("end") if isinstance(window, dict) else None
        return to_ms(end) if isinstance(end, str) else None


def _await_read(checkpoint: Path, log_range: LogRange, patience: float) -> None:
    """Return when the query has read the whole range, or does not advance."""
    read, changed = committed_offsets(checkpoint).offsets, time.monotonic()
    while not _has_read(read, log_range) and time.monotonic() - changed < patience:
        time.sleep(PAUSE)
        if (further := committed_offsets(checkpoint).offsets) != read:
            read, changed = further, time.monotonic()


def _has_read(read: Mapping[str, Mapping[str, int]], log_range: LogRange) -> bool:
    return all(
        read.get(topic, {}).get(str(partition), 0) >= end
        for topic, offsets in log_range.offsets.items()
        for partition, (start, end) in offsets.items()
        if start < end
    )
