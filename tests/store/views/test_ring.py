"""The ring of recent changes, and finding a position in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.store.views.ring import Ring, ViewChange, covers


def fill(ring: Ring, partitions: list[int]) -> list[ViewChange]:
    """Changes as they come from several partitions, in this order."""
    offsets: list[int] = [0] * (max(partitions, default=0) + 1)
    changes = []
    for partition in partitions:
        offset = offsets[partition]
        offsets[partition] += 1
        change = ViewChange("k", {}, None, partition, offset, tuple(offsets), 0)
        ring.append(change)
        changes.append(change)
    return changes


arrivals = st.lists(st.integers(0, 2), max_size=50)


@given(arrivals, st.integers(1, 20), st.data())
def test_every_change_after_a_position_in_the_ring_is_found(
    partitions: list[int], capacity: int, data: st.DataObject
) -> None:
    ring = Ring(capacity)
    changes = fill(ring, partitions)
    counts = [partitions.count(p) for p in range(3)]
    asked = tuple(data.draw(st.integers(0, count)) for count in counts)
    missing = [c for c in changes if c.offset >= asked[c.partition]]
    dropped = changes[: max(0, len(changes) - capacity)]
    assert ring.holds(asked) == (not any(c in missing for c in dropped))
    if ring.holds(asked):
        found = [ring[n] for n in range(ring.find(asked), ring.end)]
        assert [c for c in found if c.offset >= asked[c.partition]] == missing


def test_the_ring_does_not_hold_overwritten_changes() -> None:
    ring = Ring(2)
    fill(ring, [0, 0, 0])
    assert (ring.start, ring.end) == (1, 3)
    with pytest.raises(IndexError):
        ring[0]
    assert [change.offset for change in ring.newest(5)] == [1, 2]


def test_a_position_covers_another_if_nothing_is_missing() -> None:
    assert covers((3, 1), (3,))
    assert not covers((3,), (3, 1))
    assert not covers((2, 5), (3, 1))


def test_the_newest_change_of_a_key_is_known_while_the_ring_holds_it() -> None:
    ring = Ring(3)

    def append(key: str) -> None:
        offset = ring.end
        ring.append(ViewChange(key, {}, None, 0, offset, (offset + 1,), 0))

    for key in "aab":
        append(key)
    assert (ring.newest_of("a"), ring.newest_of("b")) == (1, 2)
    append("b")
    append("c")
    assert (ring.newest_of("b"), ring.newest_of("c")) == (3, 4)
    with pytest.raises(KeyError):
        ring.newest_of("a")
    assert ring.capacity == 3
