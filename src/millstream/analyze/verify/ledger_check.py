"""Compares the sums of a view's ledger with its query in batch.

An entry is due once the query's topic has a row as final or corrected, if the row is shown at all
(with `when …` it may never be). A key can be compared if its newest row there, even if it has
expired since, is final or corrected and has the revision of the recomputed row. Then the key's
assertions minus its retractions must be that row's amounts. A key that the batch does not have must
have a sum of 0. So must a key without a ledger state, while no entry is due.

Some keys are not compared, because the ledger rightly differs from the present view: amounts from
events that the log no longer has, and entries of an earlier query. The same goes for a row that is
not final: it may correct a final one, and then it is entered as soon as its state is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec

from millstream.analyze.plan import ViewPlan
from millstream.analyze.triggers.ledger import Ledger, LedgerSpec
from millstream.analyze.triggers.output_writer import newest_records
from millstream.analyze.triggers.processor import OutputProcessor
from millstream.analyze.triggers.rows import amounts as amounts_of
from millstream.analyze.triggers.tasks import output_topics
from millstream.analyze.verify.comparison import Comparison
from millstream.analyze.verify.follower import TopicFollower
from millstream.analyze.verify.result import Difference, PartResult, Row
from millstream.analyze.verify.shown_check import (
    Outcome,
    check_keys,
    count_outcomes,
    is_final,
    revision,
)
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.values.ledger_entry import Amounts, add_entry, decode, name_of

_Difference = partial(Difference, where="ledger")
_KEY = msgspec.json.Decoder(list[Any], float_hook=Decimal)  # as `decode` reads an entry's key


class LedgerCheck(TopicFollower):
    """Follows the sums of one view's ledger, by key, and compares them."""

    def __init__(
        self,
        log: LogSettings,
        app: str,
        plan: ViewPlan,
        spec: LedgerSpec,
        comparison: Comparison,
    ) -> None:
        self._log, self._spec = log, spec
        self._topics = output_topics(app, plan)
        self._comparison = replace(comparison, columns=spec.columns)
        self._sums: dict[str, Amounts] = {}
        self._before: dict[str, Amounts] = {}
        self._keys: dict[str, bytes] = {}  # as the view's rows have them
        self._ledger = Ledger(spec, 0)
        super().__init__(log, self._topics.ledger)

    def snapshot(self, patience: float) -> None:
        """Remember the sums of now, before the end of the log range is known."""
        self.catch_up(patience)
        with self._lock:
            self._before = {name: dict(sums) for name, sums in self._sums.items()}
        # Read after the entries: each entry's state was written with it.
        processor = OutputProcessor(self._topics, "", (), None, self._ledger)
        for record in newest_records(self._log, self._topics.ledger_state):
            processor.restore(record)

    def compare(
        self,
        recomputed: Mapping[str, Row],
        written: Mapping[str, Row],
        was_shown: Callable[[str], bool],
        may_lack: bool,
        patience: float,
    ) -> tuple[PartResult, list[Difference]]:
        """Compare the sums with the recomputed rows.

        `written` are the query's newest rows, also of deleted keys. `was_shown` says whether any
        row of a key was shown. `may_lack`: the log may lack events that are in the view's rows.
        """
        part, keys = PartResult("ledger"), {name_of(_KEY.decode(key)): key for key in recomputed}

        def check(name: str) -> Outcome:
            key = keys.get(name)
            if key is None:
                return self._check_extra(name, may_lack)
            return self._check(name, key, recomputed[key], written.get(key), was_shown)

        extra = {name for name, sums in self._before.items() if any(sums.values())} - keys.keys()
        found = check_keys([*keys, *extra], check, patience)
        compared = (each for name, each in found.items() if name in keys or each is not None)
        return part, count_outcomes(part, compared)

    def _check(
        self,
        name: str,
        key: str,
        recomputed: Row,
        written: Row | None,
        was_shown: Callable[[str], bool],
    ) -> Outcome:
        if written is None:
            return "gone"
        if revision(written) != revision(recomputed):
            return "moving" if revision(written) > revision(recomputed) else "behind"
        sums = self._sum(name)
        if not is_final(written) or not was_shown(key):
            has_sum = any(self._before.get(name, {}).values()) and any(sums.values())
            if has_sum and not self._ledger.has_entries(key.encode()):
                return _Difference("not owed", key, sums, None)
            return "not due"
        if self._ledger.keeps(key.encode()) and self._ledger.lacks_events(key.encode()):
            return "kept"
        amounts = amounts_of(recomputed, self._spec.columns)
        if not sums:
            return _Difference("missing", key, None, amounts)
        if columns := self._comparison.differing(sums, amounts):
            return _Difference("other sum", key, sums, amounts, columns)
        return None

    def _check_extra(self, name: str, may_lack: bool) -> Outcome:
        """The outcome of a key that the batch does not have."""
        sums = self._sum(name)
        if not any(sums.values()):
            return None
        if may_lack:
            return "older"
        if self._ledger.keeps(self._keys[name]):
            return "kept"
        return _Difference("not in the log", name, sums, None)

    def _sum(self, name: str) -> Amounts:
        with self._lock:
            return dict(self._sums.get(name, {}))

    def _apply(self, record: Record) -> None:
        self._last_change = time.monotonic()
        if record.value is not None:
            entry = decode(record.value)
            name = name_of(entry.key)
            self._keys.setdefault(name, record.key or name.encode())
            add_entry(self._sums.setdefault(name, {}), entry.kind, entry.amounts)
