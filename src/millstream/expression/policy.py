"""Conditions of policies: over a row and over `caller.<claim>`.

A policy must mean the same in our compiled Python and in DuckDB, because clients read rows both
ways. So its language is smaller than that of a filter: it has neither arithmetic nor functions
that change text, and no floats. Each literal gets the type of what it is compared with. A missing
claim is NULL, and no comparison with NULL is true: so there is no IS DISTINCT FROM either.

Claims become literals in the syntax tree, never text that is parsed. Parts that need no column are
computed at once, so that callers who see the same rows have the same condition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any, Literal, cast

import sqlglot
from sqlglot import exp

from millstream.errors import QueryError
from millstream.expression import functions
from millstream.expression.cache import TextCache
from millstream.expression.condition import Predicate, compile_tree, parse
from millstream.schema.column_types import element, fields, kind, parse_type
from millstream.syntax.names import suggest
from millstream.values.view_description import ViewColumn

CALLER = "caller"
ALLOWED = (
    "comparisons, AND, OR, NOT, IN, BETWEEN, LIKE, IS NULL, contains, ends_with, list_contains, "
    "starts_with"
)
_MAX_VALUES = 1_000  # of a claim that is a list
_INT64 = range(-(2**63), 2**63)
_Kind = Literal[
    "text", "whole", "boolean", "timestamp", "date", "array", "struct", "null", "claim", "unknown"
]
_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_OF_TEXT = (exp.StartsWith, exp.EndsWith, exp.Contains)
_COMPARED = ("text", "whole", "boolean", "timestamp", "date")
_WHOLE = frozenset({"TINYINT", "SMALLINT", "INT", "BIGINT"})
_ANY_KIND = ("null", "claim", "unknown")  # fits everywhere, as far as is known
Columns = tuple[ViewColumn, ...]


@dataclass(frozen=True)
class PolicyCondition:
    """A condition as the pipeline declares it. QueryError if it is not one that policies allow."""

    text: str
    what: str = "the policy"
    struct: str = ""  # the column whose fields it uses; empty: it uses the columns themselves

    def __post_init__(self) -> None:
        _Typing(self, None).condition(self.tree.copy())

    @cached_property
    def tree(self) -> exp.Expression:
        tree = parse(self.text, self.what)
        return tree.transform(self._nest) if self.struct else tree

    def _nest(self, node: exp.Expression) -> exp.Expression:
        if not isinstance(node, exp.Column) or _path(node)[0].lower() == CALLER:
            return node
        return _column_of([self.struct, *_path(node)])

    @cached_property
    def claims(self) -> frozenset[str]:
        """The names of the claims that it uses."""
        return frozenset(
            name for each in self.tree.find_all(exp.Column) if (name := _claim(each)) is not None
        )

    @cached_property
    def columns(self) -> frozenset[str]:
        """The names of the columns that it uses, as written."""
        return frozenset(path[0] for path in self.paths)

    @property
    def paths(self) -> list[list[str]]:
        """The columns and fields that it uses, as written."""
        found = (_path(each) for each in self.tree.find_all(exp.Column))
        return [path for path in found if path[0].lower() != CALLER]

    def within(self, struct: str) -> PolicyCondition:
        """The same condition on rows that have these columns as fields of a struct."""
        return PolicyCondition(self.text, self.what, struct)

    def check(self, columns: Columns) -> None:
        """QueryError if it does not fit the columns."""
        _Typing(self, columns).condition(self.tree.copy())

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
        return _Typing(self, columns).condition(tree)

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


class _Typing:
    """Checks a tree, and gives its literals the types of what they are compared with.

    Without columns, only what does not depend on them is checked.
    """

    def __init__(self, policy: PolicyCondition, columns: Columns | None) -> None:
        self._policy = policy
        self._known = (
            None if columns is None else {each.name: parse_type(each.type) for each in columns}
        )

    def condition(self, tree: exp.Expression) -> exp.Expression:
        return self._expect(tree, "boolean")

    def _expect(self, tree: exp.Expression, wanted: _Kind) -> exp.Expression:
        typed, found = self._part(tree)
        if found in _ANY_KIND or found == wanted:
            return typed
        if wanted == "boolean" and tree.parent is None:
            raise QueryError(
                f"{self._policy.what} {self._policy.text[:100]!r} is not a condition",
                remedy=f"write a comparison, as in tenant = {CALLER}.tenant",
            )
        raise self._mismatch(tree, found, wanted)

    def _part(self, tree: exp.Expression) -> tuple[exp.Expression, _Kind]:
        match tree:
            case exp.Paren():
                inner, found = self._part(tree.this)
                return exp.Paren(this=inner), found
            case exp.Column() | exp.Dot():
                return self._column(tree)
            case exp.Null():
                return tree, "null"
            case exp.Boolean():
                return tree, "boolean"
            case exp.Literal():
                return tree, "text" if tree.is_string else self._whole(tree, str(tree.this))
            case exp.Neg() if isinstance(tree.this, exp.Literal) and not tree.this.is_string:
                return tree, self._whole(tree, f"-{tree.this.this}")
            case exp.And() | exp.Or():
                return self._connect(tree), "boolean"
            case exp.Not():
                return exp.Not(this=self._expect(tree.this, "boolean")), "boolean"
            case exp.Is() if isinstance(tree.expression, exp.Null | exp.Boolean):
                return self._is(tree), "boolean"
            case exp.In() if tree.expressions and not tree.args.get("query"):
                value, *choices = self._same(tree, [tree.this, *tree.expressions])
                return exp.In(this=value, expressions=choices), "boolean"
            case exp.Between():
                parts = [tree.this, tree.args["low"], tree.args["high"]]
                value, low, high = self._same(tree, parts)
                return exp.Between(this=value, low=low, high=high), "boolean"
            case exp.Like() if isinstance(tree.expression, exp.Literal | exp.Column | exp.Null):
                return self._like(tree), "boolean"
            case exp.ArrayContains():
                return self._list_contains(tree), "boolean"
        if isinstance(tree, _COMPARISONS):
            one, other = self._same(tree, [tree.this, tree.expression])
            return type(tree)(this=one, expression=other), "boolean"
        if isinstance(tree, _OF_TEXT):
            parts = [self._expect(each, "text") for each in (tree.this, tree.expression)]
            return type(tree)(this=parts[0], expression=parts[1]), "boolean"
        raise self._refusal(tree)

    def _connect(self, tree: exp.And | exp.Or) -> exp.Expression:
        operands = [self._expect(each, "boolean") for each in tree.flatten()]  # type: ignore[arg-type]
        return _join(type(tree), operands)

    def _is(self, tree: exp.Is) -> exp.Expression:
        if isinstance(tree.expression, exp.Boolean):
            inner = self._expect(tree.this, "boolean")
        else:
            inner = self._part(tree.this)[0]
        return exp.Is(this=inner, expression=tree.expression)

    def _like(self, tree: exp.Like) -> exp.Expression:
        value, pattern = self._expect(tree.this, "text"), self._expect(tree.expression, "text")
        if isinstance(pattern, exp.Column) and self._known is not None:
            raise self._refusal(tree)  # a pattern from a row
        like = exp.Like(this=value, expression=pattern)
        return exp.Not(this=like) if tree.args.get("negate") else like

    def _list_contains(self, tree: exp.ArrayContains) -> exp.Expression:
        items, found = self._part(tree.this)
        if found not in ("array", *_ANY_KIND):
            raise self._mismatch(tree.this, found, "array")
        wanted, kind_ = self._part(tree.expression)
        if found == "array" and isinstance(items, exp.Column | exp.Dot):
            inner = _kind_of(element(self._type(items)))
            if inner not in ("text", "whole") or kind_ not in (inner, *_ANY_KIND):
                raise self._mismatch(tree.expression, kind_, inner)
        return exp.ArrayContains(this=items, expression=wanted)

    def _same(self, tree: exp.Expression, parts: Sequence[exp.Expression]) -> list[exp.Expression]:
        """Parts that are compared with each other, with literals of the others' type."""
        typed = [self._part(each) for each in parts]
        kinds = {k for part, k in typed if k not in _ANY_KIND and not _is_text(part)}
        if len(kinds) > 1 or not kinds <= set(_COMPARED):
            raise self._mismatch(tree, *sorted(kinds)[:2])
        wanted = next(iter(kinds), "text")
        return [
            self._literal(part, wanted) if _is_text(part) else part  # type: ignore[arg-type]
            for part, _ in typed
        ]

    def _literal(self, text: exp.Literal, wanted: _Kind) -> exp.Expression:
        value = _typed_literal(str(text.this), wanted)
        if value is None:
            raise self._mismatch(text, "text", wanted)
        return value

    def _column(self, tree: exp.Expression) -> tuple[exp.Expression, _Kind]:
        path = _path(tree)
        if path[0].lower() == CALLER:
            if len(path) != 2:
                raise QueryError(
                    f"{'.'.join(path)[:100]!r} is no claim of the caller",
                    remedy=f"write {CALLER}.<claim>, as in {CALLER}.tenant",
                )
            return tree, "claim"
        if self._known is None:
            return tree, "unknown"
        names: list[str] = []
        known: Mapping[str, exp.DataType] = self._known
        for asked in path:
            names.append(_resolve(asked, known, ".".join(names)))
            type_ = known[names[-1]]
            known = fields(type_)
        found = _kind_of(type_)
        if found == "unknown":
            raise QueryError(
                f"a policy cannot use {'.'.join(path)[:100]!r}, a {type_.sql('spark')}",
                remedy="it can use text, whole numbers, booleans, dates, timestamps and lists",
            )
        return _column_of(names), found

    def _type(self, column: exp.Expression) -> exp.DataType:
        known: Mapping[str, exp.DataType] = self._known or {}
        for name in _path(column):
            type_ = known[name]
            known = fields(type_)
        return type_

    def _whole(self, tree: exp.Expression, text: str) -> _Kind:
        if not text.lstrip("-").isdigit() or int(text) not in _INT64:
            raise QueryError(
                f"a policy cannot contain the number {text[:100]}", remedy="write a whole number"
            )
        return "whole"

    def _mismatch(self, tree: exp.Expression, *kinds: str) -> QueryError:
        shown = " and ".join(_SHOWN.get(each, each) for each in kinds)
        return QueryError(
            f"{tree.sql(dialect='duckdb')[:100]!r} mixes {shown}",
            remedy="compare values of one type",
        )

    def _refusal(self, tree: exp.Expression) -> QueryError:
        return QueryError(
            f"a policy cannot contain {tree.sql(dialect='duckdb')[:100]!r}",
            remedy=f"it may contain: {ALLOWED}",
        )


_SHOWN = {"whole": "a number", "array": "a list"}


def _kind_of(type_: exp.DataType) -> _Kind:
    found = kind(type_)
    if found == "number":
        return "whole" if type_.this.name in _WHOLE else "unknown"
    if found in ("text", "boolean", "timestamp", "date", "array", "struct"):
        return found
    return "unknown"


def _is_text(part: exp.Expression) -> bool:
    return isinstance(part, exp.Literal) and bool(part.is_string)


def _typed_literal(text: str, wanted: _Kind) -> exp.Expression | None:
    """A text in quotes as a literal of another type; None if it is none."""
    match wanted:
        case "text":
            return exp.Literal.string(text)
        case "whole":
            is_whole = text.removeprefix("-").isdecimal() and text.isascii()
            return _number(int(text)) if is_whole and int(text) in _INT64 else None
        case "boolean":
            value = {"true": True, "false": False}.get(text.lower())
            return None if value is None else exp.Boolean(this=value)
        case "timestamp":
            moment = functions.timestamp(text)
            return None if moment is None else _cast(moment, "TIMESTAMPTZ")
        case "date":
            try:
                return _cast(date.fromisoformat(text).isoformat(), "DATE")
            except ValueError:
                return None
    return None


def _cast(text: str, to: str) -> exp.Expression:
    return exp.Cast(this=exp.Literal.string(text), to=exp.DataType.build(to, dialect="duckdb"))


def _number(value: int) -> exp.Expression:
    literal = exp.Literal.number(abs(value))
    return exp.Neg(this=literal) if value < 0 else literal


def _value(claim: object) -> exp.Expression | None:
    """A claim as literals; None if it is of a type that policies do not use."""
    match claim:
        case bool():
            return exp.Boolean(this=claim)
        case int() if claim in _INT64:
            return _number(claim)
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
        name = _claim(node)
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
        value = values.get(_claim(node) or "")
        return [each.copy() for each in value.expressions] if isinstance(value, exp.Tuple) else []

    def replace(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.In):
            given = node.expressions
            listed = [c for each in given for c in (choices(each) or _kept(each, values))]
            return exp.In(this=node.this, expressions=listed) if listed else exp.false()
        if isinstance(node, exp.ArrayContains) and _claim(node.this) is not None:
            listed = choices(node.this)
            return exp.In(this=node.expression, expressions=listed) if listed else exp.Null()
        return node

    return replace


def _kept(node: exp.Expression, values: Mapping[str, exp.Expression]) -> list[exp.Expression]:
    """An item of IN that is not a list; an empty list is no item."""
    return [] if isinstance(values.get(_claim(node) or ""), exp.Tuple) else [node]


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
    return _join(type(tree), kept)


def _constant(tree: exp.Expression) -> exp.Expression | None:
    """The value of a condition that needs no column, or that compares with NULL."""
    if isinstance(tree, exp.Boolean | exp.Null):
        return tree
    if isinstance(tree, (*_COMPARISONS, *_OF_TEXT, exp.Like, exp.ArrayContains)) and any(
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


def _join(
    connective: type[exp.And] | type[exp.Or], operands: Sequence[exp.Expression]
) -> exp.Expression:
    other = exp.Or if connective is exp.And else exp.And
    wrapped = [exp.Paren(this=each) if isinstance(each, other) else each for each in operands]
    result = wrapped[0] if len(wrapped) > 1 else operands[0]
    for each in wrapped[1:]:
        result = connective(this=result, expression=each)
    return result


def _claim(node: exp.Expression | None) -> str | None:
    """The name of the claim that this node is; None if it is none."""
    if not isinstance(node, exp.Column):
        return None
    path = _path(node)
    return path[1] if len(path) == 2 and path[0].lower() == CALLER else None


def _path(column: exp.Expression) -> list[str]:
    return [part.name for part in column.parts]  # type: ignore[attr-defined]


def _column_of(names: Sequence[str]) -> exp.Expression:
    first, *rest = (exp.to_identifier(name, quoted=True) for name in names)
    column: exp.Expression = exp.Column(this=first)
    if rest:
        column = exp.column(*reversed((first, *rest)[:4]))
    for more in rest[3:]:
        column = exp.Dot(this=column, expression=more)
    return column


def _resolve(asked: str, known: Collection[str], path: str) -> str:
    if asked in known:
        return asked
    alike = [name for name in known if name.lower() == asked.lower()]
    if len(alike) == 1:
        return alike[0]
    where = f"{path!r} has no field {asked!r}" if path else f"there is no column {asked!r}"
    raise QueryError(where, remedy=suggest(asked, known))
