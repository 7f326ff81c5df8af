"""Positions in topics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import InvalidPosition
from millstream.values.position import Position

offsets = st.dictionaries(st.integers(0, 500), st.integers(0, 2**63 - 1), max_size=5)
epochs = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)


@given(epochs, offsets)
def test_a_position_reads_back_as_it_was_written(epoch: str, by_partition: dict[int, int]) -> None:
    position = Position(epoch, by_partition)
    assert Position.parse(str(position)) == position


@given(epochs, offsets)
def test_the_same_position_is_written_the_same_way(
    epoch: str, by_partition: dict[int, int]
) -> None:
    reverse = dict(reversed(by_partition.items()))
    assert str(Position(epoch, by_partition)) == str(Position(epoch, reverse))


@pytest.mark.parametrize(
    "text",
    [
        *("", "abc", "abc:0", "abc:0=", "abc:0=1,", "abc:0=-1", ":0=1", "a b:0=1", "abc:0=1;1=2"),
        *("abc:0=1\n", "abc:0=1,0=2", f"abc:0={2**63}", f"abc:{2**31}=0", "abc:0=١"),
    ],
)
def test_text_that_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(InvalidPosition, match="send back a position exactly as a server gave it"):
        Position.parse(text)


def test_a_position_covers_the_records_below_it() -> None:
    position = Position("e", {0: 5})
    assert position.covers(0, 4)
    assert not position.covers(0, 5)
    assert not position.covers(1, 0)
    assert position.after(1, 0) == Position("e", {0: 5, 1: 1})
    assert position.after(0, 5).covers(0, 5)
