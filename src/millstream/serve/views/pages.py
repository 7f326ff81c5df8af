"""Rows for one client, encoded page by page: a page is made when the client has read the last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.serve.views.encoding import Encoding, SnapshotPage, delete_body, encode
from millstream.serve.views.filter import Deadline
from millstream.store.views.ring import Offsets, Ring, Row, ViewChange

if TYPE_CHECKING:
    from millstream.serve.views.served_view import ServedView

_MAX_CHUNK = 256  # rows that are encoded before the size is looked at
_MAX_SORTED = 10_000
# One thread: pages of many clients compete with the event loop like those of one.
_PAGE_MAKER = ThreadPoolExecutor(1, "pages")


class SharedRows:
    """References to all rows of a table at one position, for clients that start there."""

    __slots__ = ("__weakref__", "keys", "offsets", "rows")

    def __init__(self, table_rows: Mapping[str, Row], offsets: Offsets) -> None:
        # Two lists of a million take milliseconds; a list of pairs takes ten times as long.
        self.keys = list(table_rows)
        self.rows = list(table_rows.values())
        self.offsets = offsets

    def select(self, encoding: Encoding, deadline: Deadline) -> Selection:
        """The rows that match; QueryError if the filter takes too long.

        Some thousand rows are sorted by key. A sort of many more takes long, for nothing: a client
        of many rows keeps them by key.
        """
        keys, rows = self.keys, self.rows
        if encoding.is_filtered:
            keys, rows = [], []
            for key, row in zip(self.keys, self.rows, strict=True):
                deadline.check()
                if encoding.matches(row):
                    keys.append(key)
                    rows.append(row)
        if len(keys) <= _MAX_SORTED:
            order = sorted(range(len(keys)), key=keys.__getitem__)
            keys, rows = [keys[at] for at in order], [rows[at] for at in order]
        return Selection(keys, rows, len(keys))


class Selection(NamedTuple):
    """Rows to send, each with its key."""

    keys: Sequence[str | None]
    rows: Sequence[Mapping[str, Any]]
    total: int  # matching rows, without the limit

    @property
    def counts(self) -> bytes:
        """How many rows match, and whether the limit leaves some out."""
        truncated = encode(len(self.rows) < self.total)
        return b'"total":%d,"truncated":%b' % (self.total, truncated)

    @classmethod
    def of(cls, pairs: Sequence[tuple[str | None, Mapping[str, Any]]], total: int) -> Selection:
        return cls([key for key, _ in pairs], [row for _, row in pairs], total)


class Snapshot:
    """The rows of a view at its position now, for one encoding and limit; page by page.

    The rows are references: while the client reads, only one page of JSON exists.
    """

    def __init__(self, served: ServedView, encoding: Encoding, limit: int | None) -> None:
        self.position = str(served.position)
        self._served = served
        self._encoding = encoding
        self._limit = limit
        self._watermark = served.watermark_json
        self._select = self._prepare()

    def _prepare(self) -> Callable[[], Selection]:
        """A function that selects from the current rows, in any thread."""
        served, encoding = self._served, self._encoding
        if self._limit is None and served.is_expensive(encoding) and served.table.keyed:
            shared = served.rows_now()
            return lambda: shared.select(encoding, served.deadline())
        select = served.prepare_rows(encoding, limit=self._limit)
        return lambda: Selection.of(*select())

    def whole(self) -> SnapshotPage | None:
        """The only page; None if there are more. Call it only for a view that is not expensive."""
        key, cache = (self._encoding, self._limit), self._served.snapshots
        if (found := cache.find(self.position, key)) is not None:
            return self._page(1, True, *found)
        selection = self._select()
        self._select = lambda: selection
        pages = Pages(selection, self._encoding, self._served.page_bytes)
        rows, is_last = pages.next()
        if not is_last:
            return None
        cache.add(self.position, key, selection.counts, rows)
        return self._page(1, True, selection.counts, rows)

    async def pages(self) -> AsyncIterator[SnapshotPage]:
        """All pages, each made when it is asked for; QueryError if the filter takes too long."""
        loop = asyncio.get_running_loop()
        selection = await asyncio.to_thread(self._select)
        pages = Pages(selection, self._encoding, self._served.page_bytes)
        number, is_last = 0, False
        while not is_last:
            number += 1
            rows, is_last = await loop.run_in_executor(_PAGE_MAKER, pages.next)
            yield self._page(number, is_last, selection.counts, rows)

    def _page(self, number: int, is_last: bool, counts: bytes, rows: bytes) -> SnapshotPage:
        head = b"%b,%b" % (name_json(self._served), counts)
        return SnapshotPage(self._watermark, head, number, is_last, rows)


def name_json(served: ServedView) -> bytes:
    """`"view":"by_city"`"""
    return b'"%b":%b' % (served.kind.encode(), encode(served.name))


class Pages:
    """JSON of a selection in arrays of about `size` bytes. Use it in one thread at a time."""

    def __init__(self, selection: Selection, encoding: Encoding, size: int) -> None:
        self._selection = selection
        self._encoding = encoding
        self._size = size
        self._at = 0

    def next(self) -> tuple[bytes, bool]:
        """The next array, and whether it is the last one; the only one may be empty."""
        keys, rows, _ = self._selection
        parts: list[bytes] = []
        size, chunk = 0, 1
        while size < self._size and self._at < len(rows):
            part = slice(self._at, self._at + chunk)
            encoded = self._encoding.encode_rows(zip(keys[part], rows[part], strict=True))[1:-1]
            self._at += chunk
            parts.append(encoded)
            size += len(encoded) + 1
            left = (self._size - size) * chunk // (len(encoded) + 1)
            chunk = max(1, min(_MAX_CHUNK, left))
        return b"[%b]" % b",".join(parts), self._at >= len(rows)


class Difference:
    """Changes that turn a client's rows under one filter into the rows under another one.

    `changed` are the keys whose changes wait for the client, with the row that it has been sent,
    if the old filter matched it.
    """

    def __init__(
        self,
        shared: SharedRows,
        changed: Mapping[str, Row | None],
        old: Encoding,
        new: Encoding,
        deadline: Callable[[], Deadline],
    ) -> None:
        self._shared = shared
        self._changed = changed
        self._old = old
        self._new = new
        self._make_deadline = deadline
        self._deadline = deadline()
        self._bodies = self._compare()

    def next(self, size: int) -> list[bytes]:
        """JSON of the next changes, about `size` bytes of it; empty at the end. QueryError."""
        self._deadline = self._make_deadline()  # the client's own time does not count
        bodies = []
        for body in self._bodies:
            bodies.append(body)
            size -= len(body)
            if size <= 0:
                break
        return bodies

    def _compare(self) -> Iterator[bytes]:
        left = dict(self._changed)
        for key, row in zip(self._shared.keys, self._shared.rows, strict=True):
            self._deadline.check()
            is_new = self._new.matches(row)
            if key in left:
                held = left.pop(key)
                has, is_same = held is not None and self._old.matches(held), False
            else:
                has, is_same = self._old.matches(row), True
            if is_new and not (has and is_same):
                change = ViewChange(key, row, None, 0, 0, (), 0)
                if (body := self._new.body(change)) is not None:
                    yield body
            elif has and not is_new:
                yield delete_body(key)
        for key, held in left.items():
            if held is not None and self._old.matches(held):
                yield delete_body(key)


def rows_before(ring: Ring, cursor: int) -> dict[str, Row | None]:
    """The keys that have changed since `cursor`, each with the row that it had there."""
    found: dict[str, Row | None] = {}
    for number in range(cursor, ring.end):
        change = ring[number]
        if change.key is not None:
            found.setdefault(change.key, change.before)
    return found
