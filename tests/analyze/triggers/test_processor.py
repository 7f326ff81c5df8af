"""Whatever crashes and repeats, the shown rows and the ledger add up to the query's rows."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analyze.triggers.in_memory import TOPICS, InMemoryView, exact

from millstream.pipeline.trigger import Accumulation

KEYS = ("a", "b", "c")  # of which each is in a window of its own
TRIGGERS = (
    *("every change", "every 2 seconds", "every 3 events"),
    *("when total > 4", "at the watermark"),
)
PARTS = ("0.1", "0.2", "-0.7", "3", "1e-7", "12345678.9", "-12345676.3")

_key = st.sampled_from(KEYS)
_some = st.sampled_from((1, 2, 5, 10**6))
_events = st.tuples(
    st.just("events"), _key, st.lists(st.sampled_from(PARTS), min_size=1, max_size=4)
)
_run = st.tuples(st.just("run"), _some)
STEPS = st.lists(
    st.one_of(
        *(_events, _events, _events, _run, _run),
        st.tuples(st.just("query_crashes"), _key, st.integers(1, 5)),
        st.tuples(st.just("time_passes"), st.integers(1, 3_000)),
        st.tuples(st.just("window_ends"), _key),
        st.tuples(st.just("state_is_written"), _key),
        st.tuples(st.just("writer_crashes"), _some),
        st.sampled_from([("writer_restarts",), ("writer_restarts",), ("query_restarts",)]),
    ),
    min_size=25,
    max_size=50,
)


@pytest.mark.parametrize("trigger", TRIGGERS)
@settings(max_examples=40)
@given(accumulation=st.sampled_from(get_args(Accumulation)), steps=STEPS)
def test_the_output_adds_up_whatever_crashes(
    trigger: str, accumulation: Accumulation, steps: list[tuple[Any, ...]]
) -> None:
    run = Run(trigger, accumulation)
    for name, *arguments in steps:
        getattr(run, name)(*arguments)
        run.check()
    run.finish()


class Run:
    """A query and its output writer, of which either crashes at any moment."""

    def __init__(self, trigger: str, accumulation: Accumulation) -> None:
        self.view = InMemoryView(trigger, accumulation)
        self.totals: dict[str, list[Decimal]] = {key: [] for key in KEYS}  # after each event
        self.has_restarted = False  # the query started again
        self.over = set[str]()  # keys whose window is over
        self.said: dict[str, int] = {}  # the revisions that were said to be final or corrected
        self.above: dict[str, list[int]] = {key: [] for key in KEYS}  # the revisions that cross

    def events(self, key: str, amounts: list[str]) -> None:
        """Events arrive; the query writes a row for each."""
        for amount in amounts:
            totals = self.totals[key]
            before = totals[-1] if totals else Decimal(0)
            totals.append(before + Decimal(amount))
            if totals[-1] > 4 >= before:
                self.above[key].append(len(totals))
            self.write_row(key, len(totals))

    def write_row(self, key: str, revision: int) -> None:
        total = self.totals[key][revision - 1]
        late = [f"{key}{number}" for number in range(revision)]
        self.view.row(key, revision, float(total), _late=late)

    def query_crashes(self, key: str, back: int) -> None:
        """It starts again a little earlier, and repeats rows."""
        revisions = range(1, len(self.totals[key]) + 1)
        for revision in revisions[-back:]:
            self.write_row(key, revision)

    def time_passes(self, milliseconds: int) -> None:
        self.view.now += milliseconds

    def window_ends(self, key: str) -> None:
        self.over.add(key)
        self.state_is_written(key)

    def state_is_written(self, key: str) -> None:
        """The first time the newest row becomes final, later it becomes corrected."""
        given = len(self.totals[key])
        if key in self.over and given and self.said.get(key) != given:
            self.view.state(key, "corrected" if key in self.said else "final", given)
            self.said[key] = given

    def run(self, at_most: int) -> None:
        self.view.run(at_most=at_most)

    def writer_crashes(self, at_most: int) -> None:
        self.view.run(at_most=at_most, lost=True)

    def writer_restarts(self) -> None:
        self.view.crash()

    def query_restarts(self) -> None:
        """All rows come again, through all their revisions, into an empty topic."""
        self.view.restart_query(self.view.generation)
        for key in KEYS:
            for revision in range(1, len(self.totals[key]) + 1):
                self.write_row(key, revision)
        self.said, self.has_restarted = {}, True

    def what_was_shown_adds_up(self) -> None:
        for key, shown in self.rows().items():
            amounts, last = [row["total"] for row in shown], shown[-1]
            count = last["n"]
            if self.view.accumulation == "discard":
                count = sum(row["n"] for row in shown)
                assert sum(amounts) == self.total(key, count)
            elif self.view.accumulation == "retract":
                signs = [-1 if row.get("_kind") else 1 for row in shown]
                added = [sign * amount for sign, amount in zip(signs, amounts, strict=True)]
                assert sum(added) == last["total"] == self.total(key, count)
            else:
                assert last["total"] == self.total(key, count)

    def no_final_row_changes_without_a_correction(self) -> None:
        for shown in self.rows().values():
            states = [row.get("_state") for row in shown if "_kind" not in row]
            assert states == sorted(states, key=[None, "final", "corrected"].index)
            assert states.count("final") <= 1

    def the_ledger_adds_up_to_the_final_rows(self) -> None:
        balance = self.view.balance()
        for key, amounts in balance.items():
            assert amounts["total"] == self.total(key, int(amounts["n"]))
        entries = self.view.entries
        assert len({entry.id for entry in entries}) == len(entries), "no entry twice"
        for key, shown in self.rows().items():
            if shown[-1].get("_state") is not None:
                count = sum(r["n"] for r in shown) if self.discards else shown[-1]["n"]
                entered = int(balance[key]["n"])
                # While a query writes its rows again, they are behind the ledger.
                assert entered == count or (self.has_restarted and entered > count)

    def a_condition_shows_a_row_once_each_time_it_becomes_true(self) -> None:
        if not self.view.trigger.startswith("when"):
            return
        for key, shown in self.rows().items():
            fired = [row["_revision"] for row in shown if not {"_kind", "_state"} & row.keys()]
            assert fired == [each for each in self.above[key] if each in fired]
            assert len(set(fired)) == len(fired)

    def check(self) -> None:
        self.what_was_shown_adds_up()
        self.no_final_row_changes_without_a_correction()
        self.the_ledger_adds_up_to_the_final_rows()
        self.a_condition_shows_a_row_once_each_time_it_becomes_true()

    def finish(self) -> None:
        """Once all is read and every window is over, everything is there."""
        for key in KEYS:
            self.window_ends(key)
        self.view.run()
        seen = self.rows().keys()
        for key, totals in self.totals.items():
            if not totals or ("when" in self.view.trigger and key not in seen):
                continue
            assert self.view.balance()[key] == {"n": len(totals), "total": totals[-1]}
            if "when" not in self.view.trigger:
                assert key in seen
        self.check()

    @property
    def discards(self) -> bool:
        return self.view.accumulation == "discard"

    def total(self, key: str, count: int) -> Decimal:
        """The true sum of the first `count` events, as far as the query's numbers can say it."""
        return Decimal(repr(float(self.totals[key][count - 1]))) if count else Decimal(0)

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """What was written of each key."""
        found = defaultdict(list)
        for write in self.view.written[TOPICS.view]:
            row = exact(write.value or b"")
            found[row["k"]].append(row)
        return dict(found)
