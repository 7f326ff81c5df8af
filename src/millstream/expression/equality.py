"""Finds `column = constant` in a condition, for an index of conditions."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from millstream.values.view_description import ViewColumn

Equality = tuple[str, str | int]  # column and value

_INTEGERS = ("tinyint", "smallint", "int", "bigint")


def find_equality(condition: exp.Expression, columns: tuple[ViewColumn, ...]) -> Equality | None:
    """A column and the value that it has in every row for which the condition holds; or None.

    Only text and whole numbers: other values can be written in several ways.
    """
    types = {column.name: column.type for column in columns}
    for part in _conjuncts(condition):
        if isinstance(part, exp.EQ):
            for column, value in ((part.left, part.right), (part.right, part.left)):
                if (found := _equality(column, value, types)) is not None:
                    return found
    return None


def _equality(column: exp.Expr, value: exp.Expr, types: dict[str, str]) -> Equality | None:
    if not isinstance(column, exp.Column) or not isinstance(value, exp.Literal):
        return None
    if column.table:  # a field of a struct
        return None
    kind, text = types.get(column.name, ""), str(value.this)
    if kind == "string" and value.is_string:
        return column.name, text
    if kind in _INTEGERS and not value.is_string and text.isdecimal():
        return column.name, int(text)
    return None


def _conjuncts(tree: exp.Expr) -> Iterator[exp.Expr]:
    """The conditions that must all hold. Without recursion: a condition may have hundreds."""
    waiting: list[exp.Expr] = [tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, exp.Paren):
            waiting.append(part.this)
        elif isinstance(part, exp.And):
            waiting += [part.right, part.left]
        else:
            yield part
