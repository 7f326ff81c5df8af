"""Results of a live query, and the changes that turn one result into another."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from millstream.errors import QueryError
from millstream.serve.views.encoding import encode
from millstream.store.sql.service import QueryFailedForNow, SqlAnswer

_MAX_CACHED = 4  # differences; nearly all clients need the newest one


class _Column(msgspec.Struct):
    name: str


class _Table(msgspec.Struct):
    columns: list[_Column]
    rows: list[list[msgspec.Raw]]  # values stay as they are written
    truncated: bool
    elapsed_ms: float


class ResultRow(NamedTuple):
    """A row as JSON, and its place if the query sorts its rows."""

    row: bytes
    rank: int | None  # from 1 on

    def members(self) -> bytes:
        rank = b"" if self.rank is None else b',"rank":%d' % self.rank
        return b'"row":%b%b' % (self.row, rank)


class ResultChange(NamedTuple):
    """A change as JSON, from `"op"` to before the position."""

    body: bytes
    position: bytes  # after it


class QueryResult:
    """All rows of a query's answer by key, and a position that only an equal result has."""

    def __init__(self, rows: dict[bytes, ResultRow], seconds: float) -> None:
        self.rows = rows
        self.seconds = seconds  # that DuckDB needed
        digest = hashlib.blake2b(digest_size=12)
        for key, row in rows.items():
            digest.update(b"%b%b" % (key, row.members()))
        self._digest = digest.hexdigest()
        self._changes: dict[str, list[ResultChange]] = {}

    @property
    def position(self) -> str:
        """The position of a client that has the whole result."""
        return f"{self._digest}:0=0"

    def encode_rows(self) -> bytes:
        """The rows of a snapshot, with their keys."""
        rows = (b'{"key":%b,%b}' % (key, row.members()) for key, row in self.rows.items())
        return b"[%b]" % b",".join(rows)

    def changes_from(self, old: QueryResult) -> list[ResultChange]:
        """The changes for a client that has the old result."""
        found = self._changes.get(old.position)
        if found is None:
            if len(self._changes) >= _MAX_CACHED:
                self._changes.clear()
            found = self._changes[old.position] = list(self._compare(old))
        return found

    def _compare(self, old: QueryResult) -> Iterator[ResultChange]:
        deleted = [key for key in old.rows if key not in self.rows]
        upserted = [key for key, row in self.rows.items() if old.rows.get(key) != row]
        # Clients count the changes that are missing: half of a difference is no result. A position
        # within it belongs to no result, so nobody can resume there.
        more = len(deleted) + len(upserted)
        for key in deleted:
            more -= 1
            yield self._change(b'"op":"delete","key":%b,"row":null' % key, more)
        for key in upserted:
            more -= 1
            yield self._change(b'"op":"upsert","key":%b,%b' % (key, self.rows[key].members()), more)

    def _change(self, body: bytes, more: int) -> ResultChange:
        place = b"%b:0=%d" % (self._digest.encode(), more)
        return ResultChange(b'%b,"more":%d,"position":"' % (body, more), place)


def read_result(
    answer: SqlAnswer, key: Sequence[str] | None, max_bytes: int, before: QueryResult | None
) -> QueryResult:
    """The result in an answer; QueryError if it cannot be followed as changes.

    It shares the memory of rows that are the same in the result before it.
    """
    if len(answer.body) > max_bytes:
        raise QueryFailedForNow(
            f"the result has {len(answer.body)} bytes, more than {max_bytes}",
            remedy="select fewer rows or columns, or raise serve.live_query_bytes",
        )
    table = msgspec.json.decode(answer.body, type=_Table)
    if table.truncated:
        raise QueryFailedForNow(
            f"the result has more than {len(table.rows)} rows",
            remedy="add a LIMIT, or raise serve.live_query_rows",
        )
    names = [column.name for column in table.columns]
    rows = [_encode_row(names, values) for values in table.rows]
    if key is not None:
        keys = _declared_keys(names, table.rows, key)
    elif answer.checked.ordered:
        keys = [b"[%d]" % rank for rank in range(1, len(rows) + 1)]
    else:
        keys = list(_keys_of_content(rows))
    is_ordered = answer.checked.ordered
    found = {
        key_: ResultRow(row, rank if is_ordered else None)
        for rank, (key_, row) in enumerate(zip(keys, rows, strict=True), 1)
    }
    if len(found) < len(rows):
        twice = next(each for each, count in Counter(keys).items() if count > 1)
        raise QueryFailedForNow(
            f"several rows have the key {twice.decode()[:100]}",
            remedy="declare a key that identifies a row, or none",
        )
    # Without an order, DuckDB's threads decide how the rows come.
    old = before.rows if before is not None else {}
    pairs = found.items() if is_ordered else sorted(found.items())
    shared = {key_: held if (held := old.get(key_)) == row else row for key_, row in pairs}
    return QueryResult(shared, table.elapsed_ms / 1000)


def _encode_row(names: Sequence[str], values: Sequence[msgspec.Raw]) -> bytes:
    members = (
        b"%b:%b" % (encode(name), bytes(value)) for name, value in zip(names, values, strict=True)
    )
    return b"{%b}" % b",".join(members)


def _declared_keys(
    names: Sequence[str], rows: Sequence[Sequence[msgspec.Raw]], key: Sequence[str]
) -> list[bytes]:
    for name in key:
        if name not in names:
            raise QueryError(f"the result lacks the key column {name!r}", remedy="select it")
    places = [names.index(name) for name in key]
    return [b"[%b]" % b",".join(bytes(values[at]) for at in places) for values in rows]


def _keys_of_content(rows: Sequence[bytes]) -> Iterator[bytes]:
    """A key for each row from its content; equal rows are numbered."""
    seen: Counter[bytes] = Counter()
    for row in rows:
        seen[row] += 1
        content = b"%d %b" % (seen[row], row)
        yield b'["%b"]' % hashlib.blake2b(content, digest_size=12).hexdigest().encode()
