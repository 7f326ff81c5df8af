"""Conditions of policies: over a row and over `caller.<claim>`.

A policy must mean the same in our compiled Python and in DuckDB, because clients read rows both
ways. So its language is smaller than that of a filter: it has neither arithmetic nor functions
that change text, and no floats. Each literal gets the type of what it is compared with. A missing
claim is NULL, and no comparison with NULL is true: so there is no IS DISTINCT FROM either.

Claims become literals in the syntax tree, never text that is parsed. Parts that need no column are
computed at once, so that callers who see the same rows have the same condition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import sqlglot
from sqlglot import exp

from millstream.errors import QueryError
from millstream.expression.cache import TextCache
from millstream.expression.condition import Predicate, compile_tree, parse
from millstream.expression.policy_types import (
    CALLER,
    COMPARISONS,
    INT64,
    OF_TEXT,
    Columns,
    PolicyTyping,
    claim_of,
    column_of,
    join_conditions,
    number_literal,
    path_of,
)
from millstream.syntax.names import suggest

_MAX_VALUES = 1_000  # of a claim that is a list


@dataclass(frozen=True)
class PolicyCondition:
    """A condition as the pipeline declares it. QueryError if it is not one that policies allow."""

    text: str
    what: str = "the policy"
    struct: str = ""  # the column whose fields it uses; empty: it uses the columns themselves

    def __post_init__(self) -> None:
        PolicyTyping(self.text, self.what, None).condition(self.tree.copy())

    @cached_property
    def tree(self) -> exp.Expression:
        tree = parse(self.text, self.what)
        return tree.transform(self._nest) if self.struct else tree

    def _nest(self, node: exp.Expression) -> exp.Expression:
        if not isinstance(node, exp.Column) or path_of(node)[0].lower() == CALLER:
            return node
        return column_of([self.struct, *path_of(node)])

    @cached_property
    def claims(self) -> frozenset[str]:
        """The names of the claims that it uses."""
        return frozenset(
            name for each in self.tree.find_all(exp.Column) if (name := claim_of(each)) is not None
        )

    @cached_property
    def columns(self) -> frozenset[str]:
        """The names of the columns that it uses, as written."""
        return frozenset(path[0] for path in self.paths)

    @property
    def paths(self) -> list[list[str]]:
        """The columns and fields that it uses, as written."""
        found = (path_of(each) for each in self.tree.find_all(exp.Column))
        return [path for path in found if path[0].lower() != CALLER]

    def within(self, struct: str) -> PolicyCondition:
        """The same condition on rows that have these columns as fields of a struct."""
        return PolicyCondition(self.text, self.what, struct)

    def check(self, columns: Columns) -> None:
        """QueryError if it does not fit the columns."""
        PolicyTyping(self.text, self.what, columns).condition(self.tree.copy())

    def check_names(self, known: Collection[str]) -> None:
        """QueryError if it uses a column that is not among these names."""
        names = {name.lower() for name in known}
        for column in sorted(self.columns):
            if column.lower() not in names:
                raise QueryError(
                    f"there is no column {column!r}",
                    remedy=suggest(column, known),
                )

    def fill(self, claims: Mapping[str, Any], columns: Columns) -> str | None:
        """The condition for a caller, without claims; None if it holds for each row.

        A claim that is missing, or whose type does not fit, is NULL. QueryError if the condition
        does not fit the columns.
        """
        values: dict[str, exp.Expression] = {}
        for name in self.claims:
            value = _value(claims.get(name))
            if value is not None and self._fits(name, value, columns):
                values[name] = value
        tree = _simplify(self._filled(values, columns), positive=True)
        if isinstance(tree, exp.Boolean) and tree.this:
            return None
        return tree.sql(dialect="duckdb", identify=True)

    def _fits(self, name: str, value: exp.Expression, columns: Columns) -> bool:
        try:
            self._filled({name: value}, columns)
        except QueryError:
            return False
        return True

    def _filled(self, values: Mapping[str, exp.Expression], columns: Columns) -> exp.Expression:
        tree = self.tree.copy().transform(_replace_lists(values)).transform(_replace(values))
        return PolicyTyping(self.text, self.what, columns).condition(tree)

    def holds(self, claims: Mapping[str, Any]) -> bool:
        """Whether a condition on the claims alone holds."""
        return self.fill(claims, ()) is None


def compile_rows(rows: str, columns: Columns, canonical: bool = True) -> Predicate:
    """A test of rows for a condition that `PolicyCondition.fill` wrote.

    A row whose values are not of the columns' types does not match.
    """
    return _compiled.get(
        (rows, columns, canonical), len(rows), lambda: _compile(rows, columns, canonical)
    )


def parse_rows(rows: str) -> exp.Expression:
    """The syntax tree of a condition that `PolicyCondition.fill` wrote."""
    # The dialect is fixed. To guess it from the text would let a claim with a backtick choose it.
    tree = sqlglot.parse_one(rows, dialect="duckdb", into=exp.Condition)
    return cast(exp.Expression, tree)


def _compile(rows: str, columns: Columns, canonical: bool) -> Predicate:
    evaluate, _ = compile_tree(parse_rows(rows), columns, canonical)

    def matches(row: Mapping[str, Any]) -> bool:
        try:
            return evaluate(row) is True
        except TypeError:
            return False

    return matches


_compiled: TextCache[Predicate] = TextCache(1_000_000)


def _value(claim: object) -> exp.Expression | None:
    """A claim as literals; None if it is of a type that policies do not use."""
    match claim:
        case bool():
            return exp.Boolean(this=claim)
        case int() if claim in INT64:
            return number_literal(claim)
        case str() if _is_storable(claim):
            return exp.Literal.string(claim)
        case list() | tuple() if len(claim) <= _MAX_VALUES:
            values = [_value(each) for each in claim if not isinstance(each, list | tuple)]
            if len(values) < len(claim) or None in values:
                return None
            return exp.Tuple(expressions=values)
    return None


def _is_storable(text: str) -> bool:
    """Whether a text can be in a row: it has neither NUL nor half of a surrogate pair."""
    return "\0" not in text and not any("\ud800" <= each <= "\udfff" for each in text)


def _replace(values: Mapping[str, exp.Expression]) -> Callable[[exp.Expression], exp.Expression]:
    """Replaces claims by their values, and all others by NULL."""

    def replace(node: exp.Expression) -> exp.Expression:
        name = claim_of(node)
        if name is None:
            return node
        value = values.get(name, exp.Null())
        # A list is none of the values that a comparison needs.
        return exp.Null() if isinstance(value, exp.Tuple) else value.copy()

    return replace


def _replace_lists(
    values: Mapping[str, exp.Expression],
) -> Callable[[exp.Expression], exp.Expression]:
    """Replaces `x IN (caller.list)` and `list_contains(caller.list, x)` by `x IN (…)`."""

    def choices(node: exp.Expression) -> list[exp.Expression]:
        value = values.get(claim_of(node) or "")
        return [each.copy() for each in value.expressions] if isinstance(value, exp.Tuple) else []

    def replace(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.In):
            given = node.expressions
            listed = [c for each in given for c in (choices(each) or _kept(each, values))]
            return exp.In(this=node.this, expressions=listed) if listed else exp.false()
        if isinstance(node, exp.ArrayContains) and claim_of(node.this) is not None:
            listed = choices(node.this)
            return exp.In(this=node.expression, expressions=listed) if listed else exp.Null()
        return node

    return replace


def _kept(node: exp.Expression, values: Mapping[str, exp.Expression]) -> list[exp.Expression]:
    """An item of IN that is not a list; an empty list is no item."""
    return [] if isinstance(values.get(claim_of(node) or ""), exp.Tuple) else [node]


def _simplify(tree: exp.Expression, *, positive: bool) -> exp.Expression:
    """The tree with parts computed that need no column.

    `positive`: NULL and false mean the same here, because the row is not visible either way.
    """
    match tree:
        case exp.Paren():
            inner = _simplify(tree.this, positive=positive)
            is_plain = isinstance(inner, exp.Boolean | exp.Null | exp.Paren)
            return inner if is_plain else exp.Paren(this=inner)
        case exp.And() | exp.Or():
            return _simplify_all(tree, positive=positive)
        case exp.Not():
            inner = _simplify(tree.this, positive=False)
            tree = exp.Not(this=inner)
    value = _constant(tree)
    if isinstance(value, exp.Null) and positive:
        return exp.false()
    return value or tree


def _simplify_all(tree: exp.And | exp.Or, *, positive: bool) -> exp.Expression:
    decides = isinstance(tree, exp.Or)  # the value of an operand that decides alone
    kept: list[exp.Expression] = []
    for operand in tree.flatten():
        part = _simplify(operand, positive=positive)  # type: ignore[arg-type]
        if isinstance(part, exp.Boolean):
            if bool(part.this) == decides:
                return part
        elif part not in kept:
            kept.append(part)
    if not kept:
        return exp.Boolean(this=not decides)
    return join_conditions(type(tree), kept)


def _constant(tree: exp.Expression) -> exp.Expression | None:
    """The value of a condition that needs no column, or that compares with NULL."""
    if isinstance(tree, exp.Boolean | exp.Null):
        return tree
    if isinstance(tree, (*COMPARISONS, *OF_TEXT, exp.Like, exp.ArrayContains)) and any(
        isinstance(each, exp.Null) for each in (tree.this, tree.expression)
    ):
        return exp.Null()
    if isinstance(tree, exp.In) and all(isinstance(each, exp.Null) for each in tree.expressions):
        return exp.Null()
    if tree.find(exp.Column, exp.Dot) is not None:
        return None
    evaluate, _ = compile_tree(tree, ())
    value = evaluate({})
    return exp.Null() if value is None else exp.Boolean(this=bool(value))
