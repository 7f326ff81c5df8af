"""What a client asks of rows: which (`where`), what of them (`select`), in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cmp_to_key, lru_cache
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from millstream.audit import Column
from millstream.errors import QueryError
from millstream.expression import functions
from millstream.expression.compiler import Unsupported
from millstream.expression.condition import (
    MAX_LENGTH,
    Predicate,
    compile_condition,
    compile_tree,
    parse,
)

Evaluate = Callable[[Mapping[str, Any]], Any]
Pick = Callable[[Mapping[str, Any]], dict[str, Any]]


def compile_where(text: str, columns: tuple[Column, ...], canonical: bool = True) -> Predicate:
    """Whether a row satisfies `text`, as SQL's WHERE says: NULL is no. QueryError if not SQL."""
    with _pointing_to_queries():
        return compile_condition(text, columns, canonical)


@lru_cache(1024)
def compile_select(paths: tuple[str, ...], columns: tuple[Column, ...]) -> Pick:
    """The named columns of a row, in that order; a field of a struct keeps its dotted name."""
    picks = {}
    for path in paths:
        tree = parse(path, "select")
        if not isinstance(tree, exp.Column | exp.Dot):
            raise QueryError(
                f"cannot select {path[:100]!r}", remedy="select takes column names; see /v1/query"
            )
        picks[path], _ = _compile(tree, columns)
    return lambda row: {name: pick(row) for name, pick in picks.items()}


@lru_cache(256)
def compile_order(text: str, columns: tuple[Column, ...]) -> Callable[[Any, Any], int]:
    """A comparison of two rows by `text`, as in `n DESC, city`; NULLs come last, as in DuckDB."""
    parts = []
    for ordered in _parse_order(text):
        evaluate, kind = _compile(ordered.this, columns)
        if kind in ("struct", "array", "map", "other"):
            raise QueryError(
                f"cannot order by a {kind} in {text[:100]!r}",
                remedy="order by one of its fields, as in window.start",
            )
        parts.append((evaluate, -1 if ordered.args.get("desc") else 1, ordered))

    def compare(a: Any, b: Any) -> int:
        for evaluate, sign, ordered in parts:
            x, y = evaluate(a), evaluate(b)
            if functions.same(x, y):
                continue
            if x is None or y is None:
                first = -1 if x is None else 1
                return first if ordered.args.get("nulls_first") else -first
            if isinstance(x, float) or isinstance(y, float):
                return sign * functions.compare(x, y)
            return sign if x > y else -sign
        return 0

    return compare


def order_rows(
    rows: Iterable[tuple[Any, Mapping[str, Any]]], text: str, columns: tuple[Column, ...]
) -> list[tuple[Any, Mapping[str, Any]]]:
    """Keyed rows in the order that `text` asks for."""
    in_order = cmp_to_key(compile_order(text, columns))
    return sorted(rows, key=lambda keyed: in_order(keyed[1]))


def split_select(text: str) -> tuple[str, ...]:
    """The names in `a,b.c`."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _compile(tree: exp.Expression, columns: tuple[Column, ...]) -> tuple[Evaluate, str]:
    with _pointing_to_queries():
        return compile_tree(tree, columns)


@contextmanager
def _pointing_to_queries() -> Iterator[None]:
    """Add to a refusal that a query of its own can do more."""
    try:
        yield
    except Unsupported as error:
        raise QueryError(
            error.message, remedy=f"{error.remedy}; for more, POST /v1/query"
        ) from None


def _parse_order(text: str) -> list[exp.Ordered]:
    if len(text) > MAX_LENGTH:
        raise QueryError(f"order has {len(text)} characters; at most {MAX_LENGTH} are read")
    dialect = "spark" if "`" in text else "duckdb"
    try:
        tree = sqlglot.parse_one(f"ORDER BY {text}", dialect=dialect, into=exp.Order)
    except (SqlglotError, RecursionError):
        tree = None
    if not isinstance(tree, exp.Order):
        raise QueryError(
            f"cannot read order {text[:100]!r}", remedy="write columns, as in n DESC, city"
        )
    return [o if isinstance(o, exp.Ordered) else exp.Ordered(this=o) for o in tree.expressions]
