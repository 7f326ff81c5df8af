"""A condition on rows, as SQL's WHERE has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from millstream.audit import Column
from millstream.errors import QueryError
from millstream.expression.compiler import Compiler
from millstream.schema import Schema, type_ddl
from millstream.store.types import parse_type

Predicate = Callable[[Mapping[str, Any]], bool]
MAX_LENGTH = 8_000


def event_columns(schema: Schema) -> tuple[Column, ...]:
    """A stream's columns, for conditions on its events."""
    return tuple(Column(field.name, type_ddl(field.type)) for field in schema.fields)


@lru_cache(1024)
def compile_condition(
    text: str, columns: tuple[Column, ...], canonical: bool = True, what: str = "where"
) -> Predicate:
    """Whether a row satisfies `text`, as SQL's WHERE says: NULL is no. QueryError if not SQL.

    `canonical`: the rows are as our analysis writes them; else as senders do.
    """
    tree = parse(text, what)
    evaluate, kind = compile_tree(tree, columns, canonical)
    if kind not in ("boolean", "null"):
        raise QueryError(
            f"the filter {text[:100]!r} is a {kind}, not a condition",
            remedy="write a comparison, as in n > 3",
        )

    def matches(row: Mapping[str, Any]) -> bool:
        try:
            return evaluate(row) is True
        except TypeError:  # a row that is not of the described types satisfies nothing
            return False

    return matches


def compile_tree(
    tree: exp.Expression, columns: Sequence[Column], canonical: bool = True
) -> tuple[Callable[[Mapping[str, Any]], Any], str]:
    """The function from a row to the expression's value, and the value's kind."""
    known = {column.name: parse_type(column.type) for column in columns}
    try:
        return Compiler(known, canonical=canonical).compile(tree)
    except RecursionError:
        raise QueryError("the expression is nested too deeply") from None


def parse(text: str, what: str) -> exp.Expression:
    """The expression that `text` is; `what` names it in the QueryError if it is none."""
    if len(text) > MAX_LENGTH:
        raise QueryError(f"{what} has {len(text)} characters; at most {MAX_LENGTH} are read")
    dialect = "spark" if "`" in text else "duckdb"
    try:
        tree = sqlglot.parse_one(text, dialect=dialect, into=exp.Condition)
    except (SqlglotError, RecursionError) as error:
        reason = (
            str(error).splitlines()[0] if isinstance(error, SqlglotError) else "nested too deeply"
        )
        raise QueryError(
            f"cannot read {what} {text[:100]!r}: {reason}",
            remedy="write an SQL expression, as in city = 'Berlin' AND n > 3",
        ) from None
    if not isinstance(tree, exp.Expression):
        raise QueryError(f"{what} is empty")
    return tree
