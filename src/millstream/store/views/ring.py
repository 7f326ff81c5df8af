"""The newest changes of a view, for clients that continue from a position."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

Row = dict[str, object]
Offsets = tuple[int, ...]  # the next offset to read, by partition number


class ViewChange(msgspec.Struct, frozen=True, gc=False):
    """The change of a view by one result record."""

    key: str | None  # the key columns as JSON text; None in a view without key
    row: Row | None  # None: deleted
    before: Row | None  # the row that was there
    partition: int
    offset: int
    offsets: Offsets  # the view's position after this change
    timestamp: int  # the record's, in milliseconds
    known: bool = True  # False: `before` is unknown


class Ring:
    """The last `capacity` changes, numbered from 0 on. Numbers are never used again."""

    def __init__(self, capacity: int, floor: Offsets = ()) -> None:
        self._slots: list[ViewChange | None] = [None] * capacity
        self.start = 0  # number of the oldest change in the ring
        self.end = 0  # number of the next change
        self._floor = list(floor)
        self._newest: dict[str, int] | None = None  # by key; made when somebody asks

    @property
    def capacity(self) -> int:
        return len(self._slots)

    def append(self, change: ViewChange) -> None:
        at = self.end % len(self._slots)
        if (oldest := self._slots[at]) is not None:
            self.start += 1
            self._raise_floor(oldest.partition, oldest.offset + 1)
            self._forget_newest(oldest.key)
        self._slots[at] = change
        if self._newest is not None and change.key is not None:
            self._newest[change.key] = self.end
        self.end += 1

    def newest_of(self, key: str) -> int:
        """The number of the newest change of a key that has one in the ring."""
        if self._newest is None:  # only some clients need it
            changes = ((self[number].key, number) for number in range(self.start, self.end))
            self._newest = {key: number for key, number in changes if key is not None}
        return self._newest[key]

    def __getitem__(self, number: int) -> ViewChange:
        change = self._slots[number % len(self._slots)]
        if change is None or not self.start <= number < self.end:
            raise IndexError(number)
        return change

    @property
    def floor(self) -> Offsets:
        """The oldest position after which the ring has every change."""
        return tuple(self._floor)

    def start_at(self, partition: int, offset: int) -> None:
        """Start at `offset`: changes before it are not in the ring."""
        self._raise_floor(partition, offset)

    def holds(self, offsets: Sequence[int]) -> bool:
        """Whether the ring has every change since `offsets`."""
        return all(
            (offsets[p] if p < len(offsets) else 0) >= low for p, low in enumerate(self._floor)
        )

    def find(self, offsets: Sequence[int]) -> int:
        """The number of the first change after `offsets`."""
        low, high = self.start, self.end
        while low < high:  # positions only grow, so a binary search works
            middle = (low + high) // 2
            if covers(offsets, self[middle].offsets):
                low = middle + 1
            else:
                high = middle
        return low

    def newest(self, count: int) -> list[ViewChange]:
        """The last changes, oldest first."""
        return [self[n] for n in range(max(self.start, self.end - count), self.end)]

    def _forget_newest(self, key: str | None) -> None:
        if self._newest is not None and key is not None and self._newest[key] < self.start:
            del self._newest[key]

    def _raise_floor(self, partition: int, offset: int) -> None:
        while len(self._floor) <= partition:
            self._floor.append(0)
        self._floor[partition] = max(self._floor[partition], offset)


def covers(offsets: Sequence[int], others: Sequence[int]) -> bool:
    """Whether `offsets` is at or after `others` in every partition."""
    return all((offsets[p] if p < len(offsets) else 0) >= other for p, other in enumerate(others))


def highest(one: Sequence[int], other: Sequence[int]) -> Offsets:
    """The higher offset of each partition."""
    width = max(len(one), len(other))
    padded = [(*v, *(0,) * (width - len(v))) for v in (one, other)]
    return tuple(map(max, *padded))
