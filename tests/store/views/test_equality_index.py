from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millstream.store.views.equality_index import ConcernedChanges, Equality, EqualityIndex
from millstream.store.views.ring import ViewChange


@dataclass(frozen=True)
class Filter:
    equality: Equality | None


def change(
    row: dict[str, Any] | None, before: dict[str, Any] | None, *, known: bool = True
) -> ViewChange:
    return ViewChange("k", row, before, 0, 0, (1,), 0, known)


def test_a_change_concerns_the_filters_of_the_row_before_and_after() -> None:
    index = EqualityIndex[Filter]()
    old, new, other, number = (
        Filter(("city", "a")),
        Filter(("city", "b")),
        Filter(("city", "c")),
        Filter(("n", 1)),
    )
    for each in (old, new, other, number):
        index.add(each)
    assert index.find(change({"city": "b", "n": 2}, {"city": "a", "n": 1})) == {old, new, number}
    assert index.find(change(None, {"city": "c"})) == {other}
    assert index.find(change({"city": None}, None)) == set()
    assert index.find(change({"city": ["a"], "n": {"x": 1}}, None)) == set()
    assert index.find(change(None, None, known=False)) == {old, new, other, number}
    for each in (old, new, other, number):
        index.discard(each)
        index.discard(each)
    assert not index


def test_the_next_change_that_concerns_a_filter_is_found() -> None:
    changes = ConcernedChanges()
    assert changes.next(3, 10) == 3  # it is not in the index: each change may concern it
    changes.start(5)
    for number in (6, 8):
        changes.add(number)
    assert [changes.next(number, 10) for number in (4, 5, 6, 7, 8, 9)] == [4, 6, 6, 8, 8, 10]
    for number in range(9, 1_000):
        changes.add(number)
    assert changes.next(20, 1_000) == 20  # forgotten, so it may concern it
    assert changes.next(999, 1_000) == 999
    changes.stop()
    assert changes.next(999, 1_000) == 999
