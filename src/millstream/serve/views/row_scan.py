"""Finds and sorts rows for one client, in steps between which the server does other work.

A thread would not help: Python runs one thread at a time, and a sort or a large list in one call
lets no other thread run until it ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import cmp_to_key
from heapq import merge
from itertools import islice
from typing import Any, TypeVar

from millstream.serve.views.encoding import Encoding
from millstream.serve.views.filter import Deadline, Order, compile_order

Row = Mapping[str, Any]
T = TypeVar("T")
Steps = Generator[None, None, T]  # returns T; other work can be done at each `yield`

_MERGED = 64  # rows in one step
_SORTED_BY_KEY = 5_000  # rows in one step; Python's sort lets nobody else run until it ends
_SORTED_BY_ORDER = 128  # the same, where each comparison runs Python
_FEW = 1_000  # rows of a limit up to which only the best ones are kept
_SLICE_SECONDS = 0.008  # for all scans together, before other work has its turn


class RowScan:
    """Rows that match an encoding, in the order that a client wants.

    `keys` and `rows` belong together and must not change; `keys` is None for a view without key.
    Rows with a key are sorted by it unless there is an order, so that every server gives the same
    answer. Rows without a key are the newest ones. `held` stays alive as long as the scan: other
    clients can share it.
    """

    def __init__(
        self,
        keys: Sequence[str] | None,
        rows: Sequence[Row],
        encoding: Encoding,
        deadline: Deadline,
        *,
        order: str | None = None,
        limit: int | None = None,
        held: object = None,
    ) -> None:
        self._keys = keys
        self._rows = rows
        self._encoding = encoding
        self._orders = compile_order(order, encoding.columns) if order else []
        self._limit = limit
        self._deadline = deadline
        self._held = held
        self._found: Sequence[int] = ()
        self.total = 0  # matching rows, without the limit

    @property
    def truncated(self) -> bool:
        """Whether the limit leaves rows out."""
        return len(self._found) < self.total

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[tuple[str | None, Row]]:
        """The rows that `steps` has found, with their keys."""
        keys, rows = self._keys, self._rows
        return ((None if keys is None else keys[at], rows[at]) for at in self._found)

    def steps(self) -> Iterator[None]:
        """Find the rows, in steps; QueryError if it takes too long."""
        found: Sequence[int] = range(len(self._rows))
        if self._encoding.is_filtered:
            found = yield from self._filter(found)
        self.total = len(found)
        limit = self.total if self._limit is None else min(self._limit, self.total)
        if self._orders:
            sort = self._best if limit <= _FEW else self._sort_by_order
            found = yield from sort(found, limit)
        elif self._keys is not None:
            found = yield from self._sort_by_key(found, limit)
        else:
            found = found[len(found) - limit :]
        self._found = found

    def _filter(self, found: Sequence[int]) -> Steps[list[int]]:
        rows, matches, check = self._rows, self._encoding.matches, self._deadline.check
        matching = []
        for at in found:
            check()
            if matches(rows[at]):
                matching.append(at)
            yield  # one row may take milliseconds
        return matching

    def _sort_by_key(self, found: Sequence[int], limit: int) -> Steps[list[int]]:
        assert self._keys is not None
        key, parts = self._keys.__getitem__, []
        for at in range(0, len(found), _SORTED_BY_KEY):
            parts.append(sorted(found[at : at + _SORTED_BY_KEY], key=key))
            yield
        return (yield from _take(merge(*parts, key=key), limit))

    def _best(self, found: Sequence[int], limit: int) -> Steps[list[int]]:
        """The first `limit` rows by the order; no more than these are kept."""
        sort_key = self._order_key()
        best: list[tuple[Any, int]] = []
        worst = None  # the last of the best; a row that is not before it does not count
        for at in found:
            key = sort_key(at)
            if worst is None or key < worst:
                best.append((key, at))
            if len(best) >= limit + _SORTED_BY_ORDER:
                best.sort(key=_first)
                del best[limit:]
                worst = best[-1][0] if best else None
            yield
        best.sort(key=_first)
        return [at for _, at in best[:limit]]

    def _sort_by_order(self, found: Sequence[int], limit: int) -> Steps[list[int]]:
        sort_key, parts = self._order_key(), []
        for at in range(0, len(found), _SORTED_BY_ORDER):
            part = []
            for each in found[at : at + _SORTED_BY_ORDER]:
                part.append((sort_key(each), each))
                yield
            part.sort(key=_first)
            parts.append(part)
            yield
        return [each for _, each in (yield from _take(merge(*parts, key=_first), limit))]

    def _order_key(self) -> Callable[[int], Any]:
        """A function from a row's number to a value that sorts as the order says."""
        rows, orders, check = self._rows, self._orders, self._deadline.check

        def compare(a: list[Any], b: list[Any]) -> int:
            check()
            return _compare(orders, a, b)

        def values(at: int) -> Any:
            check()
            return key([order.evaluate(rows[at]) for order in orders])

        key = cmp_to_key(compare)
        return values


def _compare(orders: Sequence[Order], a: list[Any], b: list[Any]) -> int:
    for order, x, y in zip(orders, a, b, strict=True):
        if found := order.compare(x, y):
            return found
    return 0


def _first(pair: tuple[Any, int]) -> Any:
    return pair[0]


def _take(values: Iterator[T], limit: int) -> Steps[list[T]]:
    """The first `limit` values as a list, in steps."""
    taken: list[T] = []
    while part := list(islice(values, min(_MERGED, limit - len(taken)))):
        taken += part
        yield
    return taken


_running = 0  # scans; they share the time of a slice


async def in_slices(steps: Iterator[None]) -> None:
    """Run the steps in the event loop, a few milliseconds at a time."""
    global _running
    clock = time.perf_counter
    _running += 1
    try:
        end = clock() + _SLICE_SECONDS / _running
        for _ in steps:
            if clock() > end:
                await asyncio.sleep(0)
                end = clock() + _SLICE_SECONDS / _running
    finally:
        _running -= 1
