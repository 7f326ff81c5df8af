"""The newest changes of a view, for clients that go on from a position."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

Row = dict[str, object]
Offsets = tuple[int, ...]  # the next offset to read, by partition number


class Change(msgspec.Struct, frozen=True, gc=False):
    """What one result record did to a view."""

    key: str | None  # the key columns as JSON text; None in a view without key
    row: Row | None  # None: gone
    before: Row | None  # what was there
    partition: int
    offset: int
    offsets: Offsets  # the view's position with this change in it
    timestamp: int  # the record's, in milliseconds
    known: bool = True  # False: nobody knows what was there before


class Ring:
    """The last `capacity` changes. Numbers grow by one and never come back."""

    def __init__(self, capacity: int, floor: Offsets = ()) -> None:
        self._slots: list[Change | None] = [None] * capacity
        self.start = 0  # the number of the oldest change that is held
        self.end = 0  # the number that the next change will get
        self._floor = list(floor)

    def append(self, change: Change) -> None:
        at = self.end % len(self._slots)
        if (oldest := self._slots[at]) is not None:
            self.start += 1
            self._raise_floor(oldest.partition, oldest.offset + 1)
        self._slots[at] = change
        self.end += 1

    def __getitem__(self, number: int) -> Change:
        change = self._slots[number % len(self._slots)]
        if change is None or not self.start <= number < self.end:
            raise IndexError(number)
        return change

    @property
    def floor(self) -> Offsets:
        """The oldest position from which every change is held."""
        return tuple(self._floor)

    def start_at(self, partition: int, offset: int) -> None:
        """Say that nothing before `offset` was read, so nothing before it can be answered for."""
        self._raise_floor(partition, offset)

    def holds(self, offsets: Sequence[int]) -> bool:
        """Whether every change since `offsets` is here."""
        return all(
            (offsets[p] if p < len(offsets) else 0) >= low for p, low in enumerate(self._floor)
        )

    def find(self, offsets: Sequence[int]) -> int:
        """The number of the first change that `offsets` does not have in it."""
        low, high = self.start, self.end
        while low < high:  # positions only grow, so the changes that are in come first
            middle = (low + high) // 2
            if covers(offsets, self[middle].offsets):
                low = middle + 1
            else:
                high = middle
        return low

    def newest(self, count: int) -> list[Change]:
        """The last changes, oldest first."""
        return [self[n] for n in range(max(self.start, self.end - count), self.end)]

    def _raise_floor(self, partition: int, offset: int) -> None:
        while len(self._floor) <= partition:
            self._floor.append(0)
        self._floor[partition] = max(self._floor[partition], offset)


def covers(offsets: Sequence[int], others: Sequence[int]) -> bool:
    """Whether all that is in at `others` is in at `offsets` too."""
    return all((offsets[p] if p < len(offsets) else 0) >= other for p, other in enumerate(others))
