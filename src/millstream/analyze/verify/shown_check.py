"""What is shown of a view with a trigger or an accumulation, against its query in batch.

The law. Take a key whose row in the query's topic is now the recomputed one: the same revision. If
what is shown of the key is of that revision, it must be the recomputed row. It must be of that
revision

- with any trigger, once the row in the query's topic says final or corrected; but a row that its
  trigger `when …` never showed stays unseen;
- with `every change`, always;
- with `every … events`, when more of these have passed than what is shown says;
- with `every 10 seconds`, after that time, if the comparison waits for twice as long.

With `when …`, a row that satisfies the condition must have been shown, of whichever revision.
Otherwise nothing is owed yet, and an older row is not compared: the batch knows only the newest.

What is shown is the newest row of the key that is no retraction. With `discard` it is the sum of
all rows of the key in the counts and sums, and the newest in the other columns; if retention took
any of them there is nothing to compare.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from millstream.analyze.plan import OutputPlan, ViewPlan
from millstream.analyze.triggers.rows import is_amount
from millstream.analyze.verify.comparison import Comparison
from millstream.analyze.verify.follower import PAUSE, Follower
from millstream.analyze.verify.result import Difference, Kind, Left, Part, Row
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
from millstream.store.views.table import Table
from millstream.values.hidden_columns import KIND, REVISION, STATE
from millstream.values.ledger_entry import Amounts, add
from millstream.values.row_version import FINAL, RETRACTION, STATES

Outcome = Difference | Left | None  # None: as it must be
Key = TypeVar("Key")


def settled(
    keys: Iterable[Key], look: Callable[[Key], Outcome], patience: float
) -> dict[Key, Outcome]:
    """What came of each key; what differs is looked at again, while that helps.

    What is made of a row comes some milliseconds later, or with the next turn of its trigger.
    """
    found = {key: look(key) for key in keys}
    off = [key for key, outcome in found.items() if isinstance(outcome, Difference)]
    since = time.monotonic()
    while off and time.monotonic() - since < patience:
        time.sleep(PAUSE)
        found |= {key: look(key) for key in off}
        still = [key for key in off if isinstance(found[key], Difference)]
        if len(still) < len(off):
            since = time.monotonic()
        off = still
    return found


def add_to(part: Part, outcomes: Iterable[Outcome]) -> list[Difference]:
    """Count what came of the keys; the differences among it."""
    differences = []
    for outcome in outcomes:
        if isinstance(outcome, Difference):
            differences.append(outcome)
        elif outcome is None:
            part.same += 1
        else:
            part.left[outcome] += 1
    return differences


def revision(row: Row) -> int:
    found = row.get(REVISION)
    return found if type(found) is int else -1


def is_final(row: Row) -> bool:
    """Whether the log says so of it."""
    return row.get(STATE) in STATES[FINAL:]


def is_due(trigger: Trigger, events: int, told: int, is_over: bool, patience: float) -> bool:
    """Whether a row with so many events must be shown, of which so many are `told`.

    `is_over`: it is final or corrected. By `when …`, only of a row that was shown before.
    """
    match trigger:
        case EveryChange():
            return True
        case EveryEvents(count):
            return is_over or events // count > told // count
        case EveryInterval(interval):
            return is_over or 2 * interval <= timedelta(seconds=patience)
        case AtWatermark() | When():
            return is_over


class ShownCheck(Follower):
    """The rows that are shown of one view."""

    def __init__(
        self,
        log: LogSettings,
        plan: ViewPlan,
        output: OutputPlan,
        trigger: Trigger,
        same: Comparison,
    ) -> None:
        self._trigger, self._same = trigger, same
        self._adds = output.additive if output.accumulation == "discard" else ()
        self._discards = output.accumulation == "discard"
        self._table = Table(keyed=True, numbers="decimal", recent=1, newest=1)
        self._holds = (
            compile_condition(trigger.condition, plan.columns)
            if isinstance(trigger, When)
            else None
        )
        self._sums: dict[str, Amounts] = {}
        self._rows: dict[str, Row] = {}
        self._seen: set[str] = set()  # keys of which anything was ever shown
        self._before: dict[str, Row] = {}
        super().__init__(log, plan.topic)

    def snapshot(self, patience: float) -> None:
        """Note what is shown by now, before it is known up to where the log is recomputed."""
        self.catch_up(patience)
        with self._lock:
            self._before = dict(self._rows)

    def was_shown(self, key: str) -> bool:
        """Whether any row of the key was, even if it is gone since."""
        return key in self._seen

    def compare(
        self,
        wanted: Mapping[str, Row],
        written: Mapping[str, Row],
        may_lack: bool,
        patience: float,
    ) -> tuple[Part, list[Difference]]:
        """Hold what is shown against the recomputed rows; `written` are the query's, as they come.

        With `may_lack`, the view may hold what the log has no more.
        """
        part = Part("shown")
        if self._discards and any(self.held_from.values()):
            part.left["trimmed"] = len(wanted)
            return part, []

        def look(key: str) -> Outcome:
            return self._look(key, wanted[key], written.get(key), may_lack, patience)

        differences = add_to(part, settled(wanted, look, patience).values())
        for key in self._before.keys() - wanted.keys():
            if may_lack:
                part.left["older"] += 1
            else:
                differences.append(_difference("not in the log", key, self._before[key], None))
        return part, differences

    def _look(
        self, key: str, recomputed: Row, written: Row | None, may_lack: bool, patience: float
    ) -> Outcome:
        wanted, early = revision(recomputed), self._before.get(key)
        if early is not None and revision(early) > wanted:
            return "older" if may_lack else _difference("ahead of the log", key, early, recomputed)
        if written is None:
            return "gone"
        if revision(written) != wanted:
            return "moving" if revision(written) > wanted else "behind"
        shown = self._whole(key)
        if shown is not None and revision(shown) == wanted:
            if columns := self._same.differing(shown, recomputed):
                return _difference("other values", key, shown, recomputed, columns)
            return None
        told = 0 if shown is None else revision(shown)
        if self._holds is not None and key not in self._seen:
            is_owed = self._holds(json.loads(json.dumps(recomputed, default=float)))
        else:
            is_owed = is_due(self._trigger, wanted, told, is_final(written), patience)
        if not is_owed:
            return "not due"
        return _difference("missing" if shown is None else "behind", key, shown, recomputed)

    def _whole(self, key: str) -> Row | None:
        with self._lock:
            row = self._rows.get(key)
            if row is None:
                return None
            sums = self._sums.get(key, {})
            # What is no number is never told as a difference.
            added = {name: sums[name] for name in self._adds if is_amount(row.get(name))}
            return {**row, **added}

    def _take(self, record: Record) -> None:
        change = self._table.apply(
            record.partition, record.offset, record.timestamp, record.key, record.value
        )
        if change is None or change.key is None:
            return
        self._news = time.monotonic()
        key, row = change.key, change.row
        if row is None:
            self._rows.pop(key, None)
        elif row.get(KIND) != RETRACTION:
            self._rows[key] = row
            self._seen.add(key)
            self._add(key, row)

    def _add(self, key: str, row: Mapping[str, Any]) -> None:
        sums = self._sums.setdefault(key, {}) if self._adds else {}
        for name in self._adds:
            if is_amount(row.get(name)):
                sums[name] = add(sums.get(name, 0), row[name])


def _difference(
    kind: Kind, key: str, shown: Row | None, recomputed: Row | None, columns: tuple[str, ...] = ()
) -> Difference:
    return Difference(kind, key, shown, recomputed, columns, "shown")
