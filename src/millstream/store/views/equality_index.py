"""Finds the filters that a change concerns, without looking at the others."""

from __future__ import annotations

from bisect import bisect_left
from typing import Generic, Protocol, TypeVar

from millstream.store.views.ring import Offsets, Row, ViewChange, covers
from millstream.store.views.table import ViewTable

Equality = tuple[str, str | int]  # column and value

_MAX_NUMBERS = 256  # of changes; a client that is further behind looks at each change


class Indexed(Protocol):
    """A filter that holds only for rows with a certain value in a column."""

    @property
    def equality(self) -> Equality | None: ...


T = TypeVar("T", bound=Indexed)


class EqualityIndex(Generic[T]):
    """Filters by column and value. The cost of a change does not depend on their number."""

    def __init__(self) -> None:
        self._columns: dict[str, dict[str | int, set[T]]] = {}

    def __bool__(self) -> bool:
        return bool(self._columns)

    def add(self, item: T) -> None:
        if item.equality is not None:
            column, value = item.equality
            self._columns.setdefault(column, {}).setdefault(value, set()).add(item)

    def discard(self, item: T) -> None:
        if item.equality is None:
            return
        column, value = item.equality
        by_value = self._columns.get(column, {})
        held = by_value.get(value, set())
        held.discard(item)
        if not held:
            by_value.pop(value, None)
        if not by_value:
            self._columns.pop(column, None)

    def find(self, change: ViewChange) -> set[T]:
        """The filters that may hold for the row before or after the change."""
        found: set[T] = set()
        for column, by_value in self._columns.items():
            if not change.known:
                found.update(*by_value.values())
                continue
            for row in (change.row, change.before):
                found |= _lookup(by_value, row, column)
        return found


def _lookup(by_value: dict[str | int, set[T]], row: Row | None, column: str) -> set[T]:
    value = None if row is None else row.get(column)
    if value is None or isinstance(value, dict | list):  # these cannot be looked up
        return set()
    return by_value.get(value, set())  # type: ignore[call-overload, no-any-return]


class ConcernedChanges:
    """Numbers of the ring's changes that concern a filter, from `since` on."""

    __slots__ = ("_numbers", "_since")

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._since: int | None = None  # None: it is not in the index

    def start(self, number: int) -> None:
        """The filter is in the index from this change on."""
        self._numbers, self._since = [], number

    def stop(self) -> None:
        self._numbers, self._since = [], None

    def add(self, number: int) -> None:
        self._numbers.append(number)
        if len(self._numbers) > _MAX_NUMBERS:
            del self._numbers[: _MAX_NUMBERS // 2]
            self._since = self._numbers[0]

    def skip(self, table: ViewTable, cursor: int, offsets: Offsets) -> tuple[int, Offsets]:
        """Move a cursor and its position to the next change that may concern the filter."""
        if self._since is None:
            return cursor, offsets
        number = self.next(cursor, table.ring.end)
        if number > max(cursor, table.ring.start):  # else the change has left the ring
            cursor, offsets = number, table.ring[number - 1].offsets
        if cursor == table.ring.end and covers(table.offsets, offsets):
            offsets = table.offsets
        return cursor, offsets

    def next(self, number: int, end: int) -> int:
        """The first change from `number` on that may concern the filter; `end` if there is none."""
        if self._since is None or number < self._since:
            return number
        at = bisect_left(self._numbers, number)
        return self._numbers[at] if at < len(self._numbers) else end
