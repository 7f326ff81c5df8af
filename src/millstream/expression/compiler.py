"""Compiles SQL expressions to Python functions, with three-valued logic.

Each part of an expression becomes one assignment. So Python's parser limits neither depth nor
length, and rows are evaluated without interpretation. A part is compiled once, even if its value is
used several times, so the code is as long as the text. The user's names and strings are in the code
only as `repr` of a str or as arguments, never as code.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal, DecimalException
from typing import Any, NamedTuple

from sqlglot import exp

from millstream.errors import QueryError
from millstream.expression import functions
from millstream.expression.like import MAX_PATTERN, parse_pattern
from millstream.schema.column_types import ValueKind, element, fields, is_float, kind

Fields = Mapping[str, exp.DataType]
_COMPARISONS: dict[type[exp.Expression], str] = {
    exp.EQ: "==",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_ARITHMETIC: dict[type[exp.Expression], str] = {
    exp.Add: "add",
    exp.Sub: "subtract",
    exp.Mul: "multiply",
    exp.Div: "divide",
    exp.Mod: "modulo",
}
# Our function, the kinds of its arguments, and the kind of its result.
_FUNCTIONS: dict[type[exp.Expression], tuple[str, tuple[ValueKind, ...], ValueKind]] = {
    exp.Lower: ("lower", ("text",), "text"),
    exp.Upper: ("upper", ("text",), "text"),
    exp.DPipe: ("concat", ("text", "text"), "text"),
    exp.StartsWith: ("starts_with", ("text", "text"), "boolean"),
    exp.EndsWith: ("ends_with", ("text", "text"), "boolean"),
    exp.Contains: ("contains", ("text", "text"), "boolean"),
}
_MAX_LINES = 5_000
# The arguments of a part that we compile, besides `this` and `expression`. A part with others is
# refused, because we would compute a wrong value.
_ARGUMENTS: dict[type[exp.Expression], set[str]] = {
    exp.Column: {"table", "db", "catalog"},
    exp.Literal: {"is_string"},
    exp.In: {"expressions"},
    exp.Between: {"low", "high"},
    exp.Case: {"ifs", "default"},
    exp.Coalesce: {"expressions"},
    exp.Cast: {"to"},
    exp.DPipe: {"safe"},
    exp.Like: {"negate"},
    exp.ILike: {"negate"},
}
ALLOWED = (
    "comparisons, AND, OR, NOT, IN, BETWEEN, LIKE, ILIKE, IS NULL, IS DISTINCT FROM, CASE, "
    "+ - * / %, ||, abs, coalesce, contains, ends_with, length, list_contains, "
    "lower, starts_with, trim, upper"
)


class Unsupported(QueryError):
    """Valid SQL that cannot be compiled; `ALLOWED` lists what can."""


class Part(NamedTuple):
    """A compiled part: its variable, its kind, and its text if it is a literal."""

    name: str
    kind: ValueKind
    literal: str | None = None
    element: exp.DataType | None = None
    floating: bool = False  # it may be NaN, which SQL orders but Python does not


class Compiler:
    """Compiles expressions over one row type.

    `canonical`: timestamps are as `analyze` writes them, all of one width and in UTC.
    `as_stored`: columns are returned as rows store them, with NaN as text, which JSON cannot write.
    """

    def __init__(self, columns: Fields, *, canonical: bool = True, as_stored: bool = False) -> None:
        self._columns = columns
        self._canonical = canonical
        self._as_stored = as_stored
        self._lines: list[str] = []
        self._constants: dict[str, Any] = {}
        self._read: dict[str, str] = {}  # code that reads a column → the variable that holds it
        self._counts_work = False  # some part's time depends on the length of a text in the row

    def compile(self, tree: exp.Expression) -> tuple[Callable[[Mapping[str, Any]], Any], ValueKind]:
        """A function from a row to the expression's value, and the value's kind."""
        part = self._part(tree)
        start = ["work = Work()"] if self._counts_work else []
        body = "\n    ".join([*start, *self._lines, f"return {part.name}"])
        scope: dict[str, Any] = {**_SCOPE, **self._constants}
        exec(f"def evaluate(row):\n    {body}", scope)
        return _bounded(scope["evaluate"]) if self._counts_work else scope["evaluate"], part.kind

    def _assign(self, code: str, kind_: ValueKind, **more: Any) -> Part:
        if len(self._lines) >= _MAX_LINES:
            raise QueryError("the expression has too many parts", remedy="ask for less")
        name = f"t{len(self._lines)}"
        self._lines.append(f"{name} = {code}")
        return Part(name, kind_, **more)

    def _work(self, function: str, *arguments: str) -> str:
        """A call of a function whose time depends on the length of a text."""
        self._counts_work = True
        return f"{function}(work, {', '.join(arguments)})"

    def _constant(self, value: object) -> str:
        name = f"c{len(self._constants)}"
        self._constants[name] = value
        return name

    def _part(self, tree: exp.Expression) -> Part:
        _check_arguments(tree)
        match tree:
            case exp.Paren():
                return self._part(tree.this)
            case exp.Column() | exp.Dot():
                return self._column(tree)
            case exp.Null():
                return self._assign("None", "null")
            case exp.Boolean():
                return self._assign(repr(bool(tree.this)), "boolean")
            case exp.Literal():
                return self._literal(tree)
            case exp.And() | exp.Or():
                return self._connect(tree)
            case exp.Not():
                inner = self._expect(tree.this, "boolean")
                return self._assign(f"None if {inner} is None else not {inner}", "boolean")
            case exp.Is():
                return self._is(tree)
            case exp.In():
                return self._in(tree)
            case exp.Between():
                value = self._part(tree.this)
                low = self._compare(tree, value, self._part(tree.args["low"]), ">=")
                high = self._compare(tree, value, self._part(tree.args["high"]), "<=")
                return self._join([low.name, high.name], "False", "True")
            case exp.NullSafeEQ() | exp.NullSafeNEQ():
                a, b = self._comparable(tree, self._part(tree.this), self._part(tree.expression))
                negation = "" if isinstance(tree, exp.NullSafeEQ) else "not "
                return self._assign(f"{negation}same({a.name}, {b.name})", "boolean")
            case exp.Case():
                return self._case(tree)
            case exp.Coalesce():
                return self._coalesce(tree)
            case exp.Neg():
                inner = self._expect(tree.this, "number")
                return self._assign(f"negate({inner})", "number", floating=True)
            case exp.Abs():
                inner = self._expect(tree.this, "number")
                return self._assign(f"absolute({inner})", "number", floating=True)
            case exp.Like() | exp.ILike():
                return self._like(tree, None)
            case exp.Escape() if isinstance(tree.this, exp.Like | exp.ILike):
                _check_arguments(tree.this)
                return self._like(tree.this, tree.expression)
            case exp.Length():
                return self._length(tree)
            case exp.Trim() if tree.args.get("position") is None and tree.expression is None:
                return self._assign(self._work("trim", self._expect(tree.this, "text")), "text")
            case exp.ArrayContains():
                return self._list_contains(tree)
            case exp.Cast() if isinstance(tree.this, exp.Literal) and tree.this.is_string:
                return self._cast(tree)
        if (operator := _COMPARISONS.get(type(tree))) is not None:
            return self._compare(tree, self._part(tree.this), self._part(tree.expression), operator)
        if (function := _ARITHMETIC.get(type(tree))) is not None:
            one = self._expect(tree.this, "number")
            other = self._expect(tree.expression, "number")
            return self._assign(f"{function}({one}, {other})", "number", floating=True)
        if (known := _FUNCTIONS.get(type(tree))) is not None:
            name, kinds, result = known
            given = (tree.this, tree.expression)[: len(kinds)]
            arguments = [self._expect(a, k) for a, k in zip(given, kinds, strict=True)]
            return self._assign(self._work(name, *arguments), result)
        raise _refusal(tree)

    def _column(self, tree: exp.Expression) -> Part:
        path = [part.name for part in tree.parts]  # type: ignore[attr-defined]
        known: Fields = self._columns
        code, type_ = "row", None
        for depth, asked in enumerate(path):
            name = _resolve(asked, known, ".".join(path[:depth]))
            code = f"row.get({name!r})" if depth == 0 else f"nested({code}, {name!r})"
            type_ = known[name]
            known = fields(type_)
        assert type_ is not None
        kind_ = kind(type_)
        floating = kind_ == "number" and (is_float(type_) or not self._canonical)
        if floating and not self._as_stored:
            code = f"{'double' if is_float(type_) else 'number'}({code})"
        if kind_ == "timestamp" and not self._canonical:
            code = f"timestamp({code})"
        inner = element(type_) if kind_ == "array" else None
        if code not in self._read:
            self._read[code] = self._assign(code, kind_).name
        return Part(self._read[code], kind_, element=inner, floating=floating)

    def _literal(self, tree: exp.Literal) -> Part:
        text = str(tree.this)
        if tree.is_string:
            return Part(self._constant(text), "text", literal=text)
        value = _read_number(text)
        if value is None:
            raise QueryError(f"{text[:100]!r} is not a number", remedy="write it as 3, 2.5 or 1e6")
        return Part(self._constant(value), "number", floating=isinstance(value, float))

    def _connect(self, tree: exp.And | exp.Or) -> Part:
        # Flattened, because the parser nests a chain of ANDs as deep as it is long.
        operands = [
            self._expect(operand, "boolean")  # type: ignore[arg-type]
            for operand in tree.flatten()
        ]
        return self._join(
            operands, *(("False", "True") if isinstance(tree, exp.And) else ("True", "False"))
        )

    def _join(self, operands: list[str], decides: str, other: str) -> Part:
        """AND or OR: `decides` if one operand is; else NULL if one is; else `other`."""
        result = operands[0]
        for operand in operands[1:]:
            result = self._assign(
                f"{decides} if {result} is {decides} or {operand} is {decides} else "
                f"None if {result} is None or {operand} is None else {other}",
                "boolean",
            ).name
        return Part(result, "boolean")

    def _is(self, tree: exp.Is) -> Part:
        inner = self._part(tree.this)
        if isinstance(tree.expression, exp.Null):
            return self._assign(f"{inner.name} is None", "boolean")
        if isinstance(tree.expression, exp.Boolean) and inner.kind in ("boolean", "null"):
            return self._assign(f"{inner.name} is {bool(tree.expression.this)}", "boolean")
        raise QueryError(f"cannot use IS in {tree.sql(dialect='duckdb')[:100]!r}")

    def _in(self, tree: exp.In) -> Part:
        if tree.args.get("query") is not None or not tree.expressions:
            raise QueryError(
                f"a filter cannot contain {tree.sql(dialect='duckdb')[:100]!r}",
                remedy="write a list, as in city IN ('Berlin', 'Paris')",
            )
        value = self._part(tree.this)
        equal = [
            self._compare(tree, value, self._part(choice), "==").name for choice in tree.expressions
        ]
        return self._join(equal, "True", "False")

    def _case(self, tree: exp.Case) -> Part:
        default = tree.args.get("default")
        result = self._part(default) if default is not None else self._assign("None", "null")
        value = None if tree.this is None else self._part(tree.this)
        for branch in reversed(tree.args["ifs"]):
            if value is None:
                condition = self._expect(branch.this, "boolean")
            else:
                condition = self._compare(tree, value, self._part(branch.this), "==").name
            then = self._part(branch.args["true"])
            if "null" not in (then.kind, result.kind) and then.kind != result.kind:
                raise QueryError(f"the branches of CASE differ: {then.kind} and {result.kind}")
            result = self._assign(
                f"{then.name} if {condition} is True else {result.name}",
                result.kind if then.kind == "null" else then.kind,
                floating=True,
            )
        return result

    def _coalesce(self, tree: exp.Coalesce) -> Part:
        result = self._part(tree.this)
        for choice in tree.expressions:
            other = self._align(self._part(choice), result.kind, choice)
            result = self._assign(
                f"{other.name} if {result.name} is None else {result.name}",
                other.kind if result.kind == "null" else result.kind,
                floating=True,
            )
        return result

    def _like(self, tree: exp.Like | exp.ILike, escape: exp.Expression | None) -> Part:
        folds = isinstance(tree, exp.ILike)
        value = self._expect(tree.this, "text")
        arguments = [self._pattern(tree.expression, escape, folds)]
        if escape is not None:
            arguments.append(self._expect(escape, "text"))
        call = self._work("ilike" if folds else "like", value, *arguments)
        found = self._assign(call, "boolean")
        if not tree.args.get("negate"):
            return found
        return self._assign(f"None if {found.name} is None else not {found.name}", "boolean")

    def _pattern(self, tree: exp.Expression, escape: exp.Expression | None, folds: bool) -> str:
        """LIKE's pattern; a literal is parsed now."""
        part = self._align(self._part(tree), "text", tree)
        literal = escape is None or (isinstance(escape, exp.Literal) and escape.is_string)
        if part.literal is None or not literal:
            return part.name
        text = part.literal.lower() if folds else part.literal
        pattern = parse_pattern(text, None if escape is None else str(escape.this))
        if pattern is None:
            raise QueryError(
                f"a LIKE pattern has {len(text)} characters; at most {MAX_PATTERN} are read"
            )
        return self._constant(pattern)

    def _length(self, tree: exp.Length) -> Part:
        inner = self._part(tree.this)
        if inner.kind not in ("text", "array", "null"):
            raise QueryError(f"length() takes text or a list, not {inner.kind}")
        return self._assign(f"length({inner.name})", "number")

    def _list_contains(self, tree: exp.ArrayContains) -> Part:
        items = self._part(tree.this)
        if items.kind != "array" or items.element is None:
            raise QueryError(f"list_contains() takes a list, not {items.kind}")
        wanted = self._align(self._part(tree.expression), kind(items.element), tree.expression)
        search = "contains_number" if wanted.kind == "number" else "contains"
        return self._assign(self._work(search, items.name, wanted.name), "boolean")

    def _cast(self, tree: exp.Cast) -> Part:
        wanted = kind(tree.to)
        if wanted not in ("timestamp", "date"):
            raise QueryError(
                f"a filter cannot contain {tree.sql(dialect='duckdb')[:100]!r}",
                remedy="compare with a literal of the column's own type",
            )
        return self._align(self._part(tree.this), wanted, tree)

    def _expect(self, tree: exp.Expression, wanted: ValueKind) -> str:
        part = self._align(self._part(tree), wanted, tree)
        return part.name

    def _compare(self, tree: exp.Expression, left: Part, right: Part, operator: str) -> Part:
        a, b = self._comparable(tree, left, right)
        compared = f"{a.name} {operator} {b.name}"
        if a.kind == "number" and (a.floating or b.floating):
            compared = f"compare({a.name}, {b.name}) {operator} 0"
        return self._assign(
            f"None if {a.name} is None or {b.name} is None else {compared}", "boolean"
        )

    def _comparable(self, tree: exp.Expression, a: Part, b: Part) -> tuple[Part, Part]:
        if (a.literal is not None and b.literal is None) or (a.kind, b.kind) == _DAY_AND_TIME:
            a = self._align(a, b.kind, tree)
        else:
            b = self._align(b, a.kind, tree)
        if a.kind in ("struct", "array", "map", "other"):
            raise QueryError(
                f"cannot compare a {a.kind} in {tree.sql(dialect='duckdb')[:100]!r}",
                remedy="compare one of its fields, as in window.start > '2026-01-01'",
            )
        return a, b

    def _align(self, part: Part, wanted: ValueKind, tree: exp.Expression) -> Part:
        """`part` as a value of the wanted kind: literals are converted; NULL is of any kind."""
        if part.kind == wanted or "null" in (part.kind, wanted):
            return part
        if part.literal is not None:
            value = _read_literal(part.literal, wanted)
            if value is not None:
                return Part(self._constant(value), wanted, floating=isinstance(value, float))
        elif (part.kind, wanted) == ("date", "timestamp"):
            return self._assign(f"timestamp({part.name})", wanted)
        elif (part.kind, wanted) == ("timestamp", "date"):
            return part  # compared as text: a date is shorter, so it comes first
        shown = repr(part.literal)[:100] if part.literal is not None else f"a {part.kind}"
        whole = tree.sql(dialect="duckdb")[:100]
        raise QueryError(
            f"{shown} is not of type {wanted}, which {whole!r} needs",
            remedy=_LITERALS.get(wanted, "compare values of one type"),
        )


# Compared as times: a day is its start.
_DAY_AND_TIME: tuple[ValueKind, ValueKind] = ("date", "timestamp")
_SCOPE = {
    name: getattr(functions, name) for name in dir(functions) if callable(getattr(functions, name))
}


def _bounded(evaluate: Callable[[Mapping[str, Any]], Any]) -> Callable[[Mapping[str, Any]], Any]:
    def bounded(row: Mapping[str, Any]) -> Any:
        try:
            return evaluate(row)
        except functions.TooMuchWork:  # a value that cannot be computed is NULL
            return None

    return bounded


_LITERALS: dict[ValueKind, str] = {
    "number": "write a number without quotes",
    "text": "write text in single quotes",
    "timestamp": "write it as '2026-01-31T12:00:00Z'",
    "date": "write it as '2026-01-31'",
    "boolean": "write true or false",
}


def _check_arguments(tree: exp.Expression) -> None:
    known = {"this", "expression"} | _ARGUMENTS.get(type(tree), set())
    if any(value for name, value in tree.args.items() if name not in known):
        raise _refusal(tree)


def _refusal(tree: exp.Expression) -> Unsupported:
    return Unsupported(
        f"a filter cannot contain {tree.sql(dialect='duckdb')[:100]!r}",
        remedy=f"it may contain: {ALLOWED}",
    )


def _read_literal(text: str, wanted: ValueKind) -> object:
    match wanted:
        case "timestamp":
            return functions.timestamp(text)
        case "date":
            try:
                return date.fromisoformat(text[:10]).isoformat()
            except ValueError:
                return None
        case "number":
            return _read_number(text)
        case "boolean":
            return {"true": True, "false": False}.get(text.lower())
    return None


def _read_number(text: str) -> functions.Number | None:
    """A number as SQL reads it: an integer, a decimal or a float."""
    for read in (int, float if "e" in text.lower() else Decimal, float):
        try:
            value = read(text)
        except (ValueError, DecimalException):
            continue
        if not isinstance(value, Decimal) or value.is_finite():
            return value
    return None


def _resolve(asked: str, known: Fields, path: str) -> str:
    """The column of that name; upper and lower case differ only if several columns match."""
    if asked in known:
        return asked
    alike = [name for name in known if name.lower() == asked.lower()]
    if len(alike) == 1:
        return alike[0]
    where = f"{path!r} has no field {asked!r}" if path else f"there is no column {asked!r}"
    close = difflib.get_close_matches(asked, known, 3, 0.5)
    listed = ", ".join(close or list(known)[:30])
    raise QueryError(where, remedy=f"{'did you mean' if close else 'there are'}: {listed}")
