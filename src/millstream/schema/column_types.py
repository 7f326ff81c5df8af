"""The types of a view's columns, parsed from Spark's DDL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal

from sqlglot import exp
from sqlglot.errors import SqlglotError

from millstream.values.view_description import ViewColumn

ValueKind = Literal[
    "number", "text", "boolean", "timestamp", "date", "struct", "array", "map", "null", "other"
]
_T = exp.DataType.Type
_KINDS: dict[object, ValueKind] = {
    **dict.fromkeys((_T.TINYINT, _T.SMALLINT, _T.INT, _T.BIGINT), "number"),
    **dict.fromkeys((_T.FLOAT, _T.DOUBLE, _T.DECIMAL), "number"),
    **dict.fromkeys((_T.TEXT, _T.VARCHAR, _T.CHAR), "text"),
    _T.BOOLEAN: "boolean",
    **dict.fromkeys((_T.TIMESTAMP, _T.TIMESTAMPTZ, _T.TIMESTAMPLTZ, _T.TIMESTAMPNTZ), "timestamp"),
    _T.DATE: "date",
    _T.STRUCT: "struct",
    _T.ARRAY: "array",
    _T.MAP: "map",
}
_FLOATS = (_T.FLOAT, _T.DOUBLE)


@lru_cache(4096)
def parse_type(ddl: str) -> exp.DataType:
    """The type that Spark writes as `ddl`; an unknown one is treated as text."""
    try:
        return exp.DataType.build(ddl, dialect="spark")
    except SqlglotError:
        return exp.DataType.build("string", dialect="spark")


def kind(type_: exp.DataType) -> ValueKind:
    """The kind of values of that type."""
    return _KINDS.get(type_.this, "other")


def is_float(type_: exp.DataType) -> bool:
    return type_.this in _FLOATS


def is_exact(columns: Sequence[ViewColumn]) -> bool:
    """Whether a column has decimals, whose digits a float would lose."""
    return any(
        part.this == _T.DECIMAL
        for column in columns
        for part in parse_type(column.type).find_all(exp.DataType)
    )


def fields(type_: exp.DataType) -> Mapping[str, exp.DataType]:
    """A struct's fields by name, in order."""
    return {part.name: part.args["kind"] for part in type_.expressions if "kind" in part.args}


def element(type_: exp.DataType) -> exp.DataType:
    """The type of an array's elements."""
    inner = type_.expressions
    return inner[0] if inner and isinstance(inner[0], exp.DataType) else parse_type("string")


def duckdb_type(type_: exp.DataType) -> str:
    """The type in DuckDB's SQL."""
    return type_.sql(dialect="duckdb") if kind(type_) != "other" else "VARCHAR"
