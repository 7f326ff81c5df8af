"""A client's `where`, `select` and `order`, compiled to Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from millstream.errors import QueryError
from millstream.expression import functions
from millstream.expression.cache import TextCache
from millstream.expression.compiler import Unsupported
from millstream.expression.condition import (
    Predicate,
    check_tokens,
    compile_condition,
    compile_tree,
    dialect_of,
    parse,
)
from millstream.schema.column_types import fields, parse_type
from millstream.values.hidden_columns import ERROR, LINEAGE, RESERVED
from millstream.values.view_description import ViewColumn

Evaluate = Callable[[Mapping[str, Any]], Any]
Projection = Callable[[Mapping[str, Any]], dict[str, Any]]
_MAX_PATHS = 1_000
_MAX_ORDERS = 32


def compile_where(text: str, columns: tuple[ViewColumn, ...], canonical: bool = True) -> Predicate:
    """A test of rows for SQL's WHERE; NULL means no. QueryError if `text` is not SQL."""
    with _suggesting_sql():
        return compile_condition(text, columns, canonical)


class Deadline:
    """Time limit for filtering and sorting rows for one client; QueryError after that."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._checks = 0

    def check(self) -> None:
        """Call this for each row, and for each comparison of two rows."""
        self._checks += 1
        if self._checks % 16 == 0 and time.monotonic() > self._end:
            raise QueryError(
                f"the filter or order took longer than {self._seconds:g} s",
                remedy="ask for less, or POST /v1/query",
            )


class Order(NamedTuple):
    """One expression of ORDER BY."""

    evaluate: Evaluate
    descending: bool
    nulls_first: bool

    def compare(self, x: Any, y: Any) -> int:
        if functions.same(x, y):
            return 0
        if x is None or y is None:
            first = -1 if x is None else 1
            return first if self.nulls_first else -first
        sign = -1 if self.descending else 1
        if isinstance(x, float) or isinstance(y, float):
            return sign * functions.compare(x, y)
        return sign if x > y else -sign


_projections: TextCache[Projection] = TextCache(250_000)
_orders: TextCache[list[Order]] = TextCache(100_000)


def compile_select(paths: tuple[str, ...], columns: tuple[ViewColumn, ...]) -> Projection:
    """A function that reads these columns of a row; a struct's field keeps its dotted name."""
    if len(paths) > _MAX_PATHS:
        raise QueryError(f"select names {len(paths)} columns; at most {_MAX_PATHS} are read")
    return _projections.get(
        (paths, columns), sum(map(len, paths)), lambda: _compile_select(paths, columns)
    )


def _compile_select(paths: tuple[str, ...], columns: tuple[ViewColumn, ...]) -> Projection:
    getters = {}
    for path in paths:
        tree = parse(path, "select")
        if not isinstance(tree, exp.Column | exp.Dot):
            raise QueryError(
                f"cannot select {path[:100]!r}", remedy="select takes column names; see /v1/query"
            )
        getters[path], _ = _compile(tree, columns, as_stored=True)
    return lambda row: {name: get(row) for name, get in getters.items()}


def without_lineage(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in LINEAGE}


def with_lineage(row: Mapping[str, Any]) -> dict[str, Any]:
    return dict(row)


def only(columns: tuple[ViewColumn, ...], hidden: Collection[str], *, lineage: bool) -> Projection:
    """A function that reads these columns of a row, and what Millstream adds to every row.

    Fields of events that the schema does not mention are left out: no policy speaks of them.
    """
    added = RESERVED if lineage else RESERVED - LINEAGE
    names = {column.name for column in columns} | added

    def project(row: Mapping[str, Any]) -> dict[str, Any]:
        shown = {name: value for name, value in row.items() if name in names}
        if isinstance(errors := shown.get(ERROR), dict):  # by the names of the columns
            shown[ERROR] = {name: each for name, each in errors.items() if name not in hidden}
        return shown

    return project


def without_columns(
    columns: tuple[ViewColumn, ...], hidden: Collection[str]
) -> tuple[ViewColumn, ...]:
    """The columns without the hidden ones."""
    return tuple(
        ViewColumn(ERROR, _without_fields(column.type, hidden)) if column.name == ERROR else column
        for column in columns
        if column.name not in hidden
    )


def _without_fields(struct: str, hidden: Collection[str]) -> str:
    kept = {name: type_ for name, type_ in fields(parse_type(struct)).items() if name not in hidden}
    listed = (f"`{name}`:{type_.sql('spark')}" for name, type_ in kept.items())
    return f"struct<{','.join(listed)}>"


def compile_order(text: str, columns: tuple[ViewColumn, ...]) -> list[Order]:
    """The expressions of an order such as `n DESC, city`; NULLs come last, as in DuckDB."""
    return _orders.get((text, columns), len(text), lambda: _compile_order(text, columns))


def _compile_order(text: str, columns: tuple[ViewColumn, ...]) -> list[Order]:
    orders = []
    for ordered in _parse_order(text):
        evaluate, kind = _compile(ordered.this, columns)
        if kind in ("struct", "array", "map", "other"):
            raise QueryError(
                f"cannot order by a {kind} in {text[:100]!r}",
                remedy="order by one of its fields, as in window.start",
            )
        descending, nulls_first = ordered.args.get("desc"), ordered.args.get("nulls_first")
        orders.append(Order(evaluate, bool(descending), bool(nulls_first)))
    return orders


def split_select(text: str) -> tuple[str, ...]:
    """The names in `a,b.c`."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _compile(
    tree: exp.Expression, columns: tuple[ViewColumn, ...], *, as_stored: bool = False
) -> tuple[Evaluate, str]:
    with _suggesting_sql():
        return compile_tree(tree, columns, as_stored=as_stored)


@contextmanager
def _suggesting_sql() -> Iterator[None]:
    """Add to an error that SQL queries can do more."""
    try:
        yield
    except Unsupported as error:
        raise QueryError(
            error.message, remedy=f"{error.remedy}; for more, POST /v1/query"
        ) from None


def _parse_order(text: str) -> list[exp.Ordered]:
    try:
        check_tokens(text, "order")
        tree = sqlglot.parse_one(f"ORDER BY {text}", dialect=dialect_of(text), into=exp.Order)
    except (SqlglotError, RecursionError):
        tree = None
    if not isinstance(tree, exp.Order):
        raise QueryError(
            f"cannot read order {text[:100]!r}", remedy="write columns, as in n DESC, city"
        )
    if len(tree.expressions) > _MAX_ORDERS:
        raise QueryError(f"order has {len(tree.expressions)} parts; at most {_MAX_ORDERS} are read")
    return [o if isinstance(o, exp.Ordered) else exp.Ordered(this=o) for o in tree.expressions]
