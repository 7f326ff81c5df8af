"""Types in the conditions of policies: checks a condition, and gives its literals their types."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import date
from typing import Literal

from sqlglot import exp

from millstream.errors import QueryError
from millstream.expression import functions
from millstream.schema.column_types import element, fields, kind, parse_type
from millstream.syntax.names import suggest
from millstream.values.view_description import ViewColumn

CALLER = "caller"
ALLOWED = (
    "comparisons, AND, OR, NOT, IN, BETWEEN, LIKE, IS NULL, contains, ends_with, list_contains, "
    "starts_with"
)
INT64 = range(-(2**63), 2**63)
COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
OF_TEXT = (exp.StartsWith, exp.EndsWith, exp.Contains)
_Kind = Literal[
    "text", "whole", "boolean", "timestamp", "date", "array", "struct", "null", "claim", "unknown"
]
_COMPARED = ("text", "whole", "boolean", "timestamp", "date")
_WHOLE = frozenset({"TINYINT", "SMALLINT", "INT", "BIGINT"})
_ANY_KIND = ("null", "claim", "unknown")  # fits everywhere, as far as is known
Columns = tuple[ViewColumn, ...]


class PolicyTyping:
    """Checks a tree, and gives its literals the types of what they are compared with.

    Without columns, only what does not depend on them is checked.
    """

    def __init__(self, text: str, what: str, columns: Columns | None) -> None:
        self._text = text
        self._what = what
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
                f"{self._what} {self._text[:100]!r} is not a condition",
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
        if isinstance(tree, COMPARISONS):
            one, other = self._same(tree, [tree.this, tree.expression])
            return type(tree)(this=one, expression=other), "boolean"
        if isinstance(tree, OF_TEXT):
            parts = [self._expect(each, "text") for each in (tree.this, tree.expression)]
            return type(tree)(this=parts[0], expression=parts[1]), "boolean"
        raise self._refusal(tree)

    def _connect(self, tree: exp.And | exp.Or) -> exp.Expression:
        operands = [self._expect(each, "boolean") for each in tree.flatten()]  # type: ignore[arg-type]
        return join_conditions(type(tree), operands)

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
        path = path_of(tree)
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
        return column_of(names), found

    def _type(self, column: exp.Expression) -> exp.DataType:
        known: Mapping[str, exp.DataType] = self._known or {}
        for name in path_of(column):
            type_ = known[name]
            known = fields(type_)
        return type_

    def _whole(self, tree: exp.Expression, text: str) -> _Kind:
        if not text.lstrip("-").isdigit() or int(text) not in INT64:
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
            return number_literal(int(text)) if is_whole and int(text) in INT64 else None
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


def number_literal(value: int) -> exp.Expression:
    literal = exp.Literal.number(abs(value))
    return exp.Neg(this=literal) if value < 0 else literal


def join_conditions(
    connective: type[exp.And] | type[exp.Or], operands: Sequence[exp.Expression]
) -> exp.Expression:
    other = exp.Or if connective is exp.And else exp.And
    wrapped = [exp.Paren(this=each) if isinstance(each, other) else each for each in operands]
    result = wrapped[0] if len(wrapped) > 1 else operands[0]
    for each in wrapped[1:]:
        result = connective(this=result, expression=each)
    return result


def claim_of(node: exp.Expression | None) -> str | None:
    """The name of the claim that this node is; None if it is none."""
    if not isinstance(node, exp.Column):
        return None
    path = path_of(node)
    return path[1] if len(path) == 2 and path[0].lower() == CALLER else None


def path_of(column: exp.Expression) -> list[str]:
    return [part.name for part in column.parts]  # type: ignore[attr-defined]


def column_of(names: Sequence[str]) -> exp.Expression:
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
