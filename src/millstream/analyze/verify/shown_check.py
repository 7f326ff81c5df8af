"""Compares the shown rows of a view with a trigger or an accumulation with its query in batch.

A key can be compared when its row in the query's topic has the revision of the recomputed row. If
the shown row has that revision too, it must equal the recomputed row. It must have that revision

- with any trigger, once the row in the query's topic is final or corrected; but a row that its
  trigger `when …` never showed stays hidden;
- with `every change`, always;
- with `every … events`, if the row has passed a multiple of these since it was shown;
- with `every 10 seconds`, after that time, if the check waits for twice as long.

With `when …`, a row that meets the condition must have been shown, in any revision. In all other
cases no row is due yet, and an older row is not compared: the batch only has the newest.

The shown row is the newest row of the key that is no retraction. With `discard`, counts and sums
are those of all rows of the key together, and other columns those of the newest row. If retention
deleted any of them, nothing is compared.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from millstream.analyze.plan import OutputPlan, ViewPlan
from millstream.analyze.triggers.rows import is_amount
from millstream.analyze.verify.comparison import Comparison
from millstream.analyze.verify.follower import PAUSE, TopicFollower
from millstream.analyze.verify.result import Difference, NotCompared, PartResult, Row
from millstream.expression.condition import compile_condition
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.pipeline.trigger import (
    AtWatermark,
    EveryChange,
    EveryEvents,
    EveryInterval,
    Trigger,
    When,
)
from millstream.store.views.table import ViewTable
from millstream.values.hidden_columns import KIND, REVISION, STATE
from millstream.values.ledger_entry import Amounts, add
from millstream.values.row_version import FINAL, RETRACTION, STATES

Outcome = Difference | NotCompared | None  # None: as expected
_Difference = partial(Difference, where="shown")
Key = TypeVar("Key")


def check_keys(
    keys: Iterable[Key], check: Callable[[Key], Outcome], patience: float
) -> dict[Key, Outcome]:
    """The outcome of each key. Keys that differ are checked again, while that helps.

    Shown rows and entries are written some milliseconds after the query's row, or when the trigger
    fires next.
    """
    outcomes = {key: check(key) for key in keys}
    differing = [key for key, outcome in outcomes.items() if isinstance(outcome, Difference)]
    since = time.monotonic()
    while differing and time.monotonic() - since < patience:
        time.sleep(PAUSE)
        outcomes |= {key: check(key) for key in differing}
        still = [key for key in differing if isinstance(outcomes[key], Difference)]
        if len(still) < len(differing):
            since = time.monotonic()
        differing = still
    return outcomes


def count_outcomes(part: PartResult, outcomes: Iterable[Outcome]) -> list[Difference]:
    """Count the outcomes; return the differences among them."""
    differences = []
    for outcome in outcomes:
        if isinstance(outcome, Difference):
            differences.append(outcome)
        elif outcome is None:
            part.same += 1
        else:
            part.not_compared[outcome] += 1
    return differences


def revision(row: Row) -> int:
    found = row.get(REVISION)
    return found if type(found) is int else -1


def is_final(row: Row) -> bool:
    """Whether the log has the row as final or corrected."""
    return row.get(STATE) in STATES[FINAL:]


def is_due(trigger: Trigger, events: int, shown: int, is_over: bool, patience: float) -> bool:
    """Whether a row of so many events must be shown, if it was shown with `shown` events.

    `is_over`: it is final or corrected. With `when …`, only for a row that was shown before.
    """
    match trigger:
        case EveryChange():
            return True
        case EveryEvents(count):
            return is_over or events // count > shown // count
        case EveryInterval(interval):
            return is_over or 2 * interval <= timedelta(seconds=patience)
        case AtWatermark() | When():
            return is_over


class ShownCheck(TopicFollower):
    """Follows the shown rows of one view, and compares them."""

    def __init__(
        self,
        log: LogSettings,
        plan: ViewPlan,
        output: OutputPlan,
        trigger: Trigger,
        comparison: Comparison,
    ) -> None:
        self._trigger, self._comparison = trigger, comparison
        self._discards = output.accumulation == "discard"
        self._additive = output.additive if self._discards else ()
        self._table = ViewTable(keyed=True, numbers="decimal", recent=1, newest=1)
        self._condition = (
            compile_condition(trigger.condition, plan.columns)
            if isinstance(trigger, When)
            else None
        )
        self._sums: dict[str, Amounts] = {}
        self._rows: dict[str, Row] = {}
        self._shown: set[str] = set()  # keys that were ever shown
        self._before: dict[str, Row] = {}
        super().__init__(log, plan.topic)

    def snapshot(self, patience: float) -> None:
        """Remember the rows shown by now, before the end of the log range is known."""
        self.catch_up(patience)
        with self._lock:
            self._before = dict(self._rows)

    def was_shown(self, key: str) -> bool:
        """Whether any row of the key was shown, even if it was deleted since."""
        return key in self._shown

    def compare(
        self,
        recomputed: Mapping[str, Row],
        written: Mapping[str, Row],
        may_lack: bool,
        patience: float,
    ) -> tuple[PartResult, list[Difference]]:
        """Compare the shown rows with the recomputed ones; `written` are the query's.

        `may_lack`: the log may lack events that are in the view's rows.
        """
        part = PartResult("shown")
        if self._discards and any(self.held_from.values()):
            part.not_compared["trimmed"] = len(recomputed)
            return part, []

        def check(key: str) -> Outcome:
            return self._check(key, recomputed[key], written.get(key), may_lack, patience)

        differences = count_outcomes(part, check_keys(recomputed, check, patience).values())
        for key in self._before.keys() - recomputed.keys():
            if may_lack:
                part.not_compared["older"] += 1
            else:
                differences.append(_Difference("not in the log", key, self._before[key], None))
        return part, differences

    def _check(
        self, key: str, recomputed: Row, written: Row | None, may_lack: bool, patience: float
    ) -> Outcome:
        wanted, early = revision(recomputed), self._before.get(key)
        if early is not None and revision(early) > wanted:
            return "older" if may_lack else _Difference("ahead of the log", key, early, recomputed)
        if written is None:
            return "gone"
        if revision(written) != wanted:
            return "moving" if revision(written) > wanted else "behind"
        shown = self._shown_row(key)
        if shown is not None and revision(shown) == wanted:
            if columns := self._comparison.differing(shown, recomputed):
                return _Difference("other values", key, shown, recomputed, columns)
            return None
        if self._condition is not None and key not in self._shown:
            must_show = self._condition(json.loads(json.dumps(recomputed, default=float)))
        else:
            events = 0 if shown is None else revision(shown)
            must_show = is_due(self._trigger, wanted, events, is_final(written), patience)
        if not must_show:
            return "not due"
        return _Difference("missing" if shown is None else "behind", key, shown, recomputed)

    def _shown_row(self, key: str) -> Row | None:
        with self._lock:
            row = self._rows.get(key)
            if row is None:
                return None
            sums = self._sums.get(key, {})
            # A value that is no number is always shown whole.
            return {
                **row,
                **{name: sums[name] for name in self._additive if is_amount(row.get(name))},
            }

    def _apply(self, record: Record) -> None:
        change = self._table.apply(*record[1:6])
        if change is None or change.key is None:
            return
        self._last_change = time.monotonic()
        key, row = change.key, change.row
        if row is None:
            self._rows.pop(key, None)
        elif row.get(KIND) != RETRACTION:
            self._rows[key] = row
            self._shown.add(key)
            self._add(key, row)

    def _add(self, key: str, row: Mapping[str, Any]) -> None:
        sums = self._sums.setdefault(key, {}) if self._additive else {}
        for name in self._additive:
            if is_amount(row.get(name)):
                sums[name] = add(sums.get(name, 0), row[name])
