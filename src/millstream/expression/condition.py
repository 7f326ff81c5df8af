"""Conditions on rows, as in SQL's WHERE."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError
from sqlglot.tokens import TokenType

from millstream.errors import QueryError
from millstream.expression.cache import TextCache
from millstream.expression.compiler import ALLOWED, Compiler, Unsupported
from millstream.schema import Schema, type_ddl
from millstream.schema.column_types import parse_type
from millstream.values.view_description import ViewColumn

Predicate = Callable[[Mapping[str, Any]], bool]
MAX_LENGTH = 8_000
_MAX_TOKENS = 3_000
_MAX_DOTS = 16  # in one name
_compiled: TextCache[Predicate] = TextCache(250_000)


def event_columns(schema: Schema) -> tuple[ViewColumn, ...]:
    """A stream's columns, for conditions on its events."""
    return tuple(ViewColumn(field.name, type_ddl(field.type)) for field in schema.fields)


def compile_condition(
    text: str, columns: tuple[ViewColumn, ...], canonical: bool = True, what: str = "where"
) -> Predicate:
    """A test of rows, as in SQL's WHERE; NULL means no. QueryError if `text` is not SQL.

    `canonical`: the rows are as `analyze` writes them; else as senders do.
    """
    return _compiled.get(
        (text, columns, canonical, what),
        len(text),
        lambda: _compile_condition(text, columns, canonical, what),
    )


def _compile_condition(
    text: str, columns: tuple[ViewColumn, ...], canonical: bool, what: str
) -> Predicate:
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
        except TypeError:  # a row with other types than described does not match
            return False

    return matches


def compile_tree(
    tree: exp.Expression,
    columns: Sequence[ViewColumn],
    canonical: bool = True,
    as_stored: bool = False,
) -> tuple[Callable[[Mapping[str, Any]], Any], str]:
    """A function from a row to the expression's value, and the value's kind."""
    known = {column.name: parse_type(column.type) for column in columns}
    try:
        return Compiler(known, canonical=canonical, as_stored=as_stored).compile(tree)
    except RecursionError:
        raise QueryError("the expression is nested too deeply") from None


def parse(text: str, what: str) -> exp.Expression:
    """Parse an expression; `what` names it in the QueryError if it is invalid."""
    dialect = dialect_of(text)
    try:
        check_tokens(text, what)
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


def dialect_of(text: str) -> str:
    return "spark" if "`" in text else "duckdb"


def check_tokens(text: str, what: str) -> None:
    """QueryError if the parser would take too long: its time is not always linear."""
    if len(text) > MAX_LENGTH:
        raise QueryError(f"{what} has {len(text)} characters; at most {MAX_LENGTH} are read")
    tokens = Dialect.get_or_raise(dialect_of(text)).tokenize(text)
    if len(tokens) > _MAX_TOKENS:
        raise QueryError(
            f"{what} has {len(tokens)} words and signs; at most {_MAX_TOKENS} are read"
        )
    dots = 0
    for at, token in enumerate(tokens):
        if token.token_type in (TokenType.L_BRACKET, TokenType.L_BRACE):
            raise _refusal(token.text)
        if token.token_type == TokenType.DOT:
            dots = dots + 1 if at >= 2 and tokens[at - 2].token_type == TokenType.DOT else 1
            following = tokens[at + 2 : at + 3]
            if dots > _MAX_DOTS or [t.token_type for t in following] == [TokenType.L_PAREN]:
                raise _refusal("." + "".join(t.text for t in tokens[at + 1 : at + 3]))


def _refusal(shown: str) -> Unsupported:
    return Unsupported(
        f"a filter cannot contain {shown[:100]!r}", remedy=f"it may contain: {ALLOWED}"
    )
