"""Turns the declaration of a named query into a `NamedQuery`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from millstream.pipeline.declarations.declaration import Declaration
from millstream.pipeline.model import NamedQuery, ParameterType, QueryParameter
from millstream.pipeline.query_sql import QuerySql, parse_query
from millstream.syntax.names import closest, name_problem, suggest
from millstream.syntax.source_location import Statement

QUERY_OPTIONS = ("sql", "key", "description")
# Names that have a meaning of their own where a query is called.
_RESERVED = (*QUERY_OPTIONS, "name", "after", "wait", "named", "limit", "format", "ticket")
_TYPES: dict[type, ParameterType] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    type(None): "string",
}
_INTEGERS = 2**63


def declare_query(
    statement: Statement, name: object, options: Mapping[str, Any], parameters: Mapping[str, Any]
) -> NamedQuery:
    """The query that the user's call or statement declares; `parameters` are its defaults."""
    declared = Declaration.of(statement, "query", name, options, QUERY_OPTIONS)
    sql = declared.get("sql")
    if not isinstance(sql, str):
        raise declared.mistake(f"has sql={sql!r}", "write sql='SELECT … FROM a_view'", "sql")
    parsed = declared.parse("sql", parse_query, sql)
    _check_parameters(declared, parsed, parameters)
    key = declared.column_names("key", "write the names of result columns, as in key=['product']")
    _check_key(declared, key, parsed)
    return NamedQuery(
        name=declared.name,
        sql=parsed.text,
        parameters=tuple(_parameter(declared, *each) for each in parameters.items()),
        key=key or None,
        views=parsed.tables,
        description=declared.get("description") or "",
        location=statement.location,
    )


def _check_parameters(
    declared: Declaration, parsed: QuerySql, parameters: Mapping[str, Any]
) -> None:
    for name in parsed.parameters:
        if name not in parameters:
            close = closest(name, parameters)
            remedy = f"did you mean :{close}?" if close else f"give it a default, as in {name}=50"
            problem = f"uses the parameter :{name}, which is not declared"
            raise declared.mistake(problem, remedy, "sql")
    for name in parameters:
        if name not in parsed.parameters:
            close = closest(name, (*QUERY_OPTIONS, *parsed.parameters))
            remedy = f"did you mean {close!r}?" if close else f"use it as :{name}, or leave it out"
            problem = f"declares the parameter {name!r}, which its sql does not use"
            raise declared.mistake(problem, remedy, name)


def _parameter(declared: Declaration, name: str, default: Any) -> QueryParameter:
    if problem := name_problem(name):
        raise declared.mistake(f"has the parameter {name!r}, which {problem}", option=name)
    if name in _RESERVED:
        problem = f"has the parameter {name!r}, a name that is taken"
        raise declared.mistake(problem, f"write another one, such as max_{name}", name)
    if isinstance(default, type) and default in _TYPES:
        return QueryParameter(name, _TYPES[default], None)
    type_ = _TYPES.get(type(default))
    is_sound = type_ is not None
    if isinstance(default, float):
        is_sound = math.isfinite(default)
    elif isinstance(default, int):
        is_sound = -_INTEGERS <= default < _INTEGERS
    if type_ is None or not is_sound:
        remedy = "write a text, a number, True, False, None, or one of the types str, int, float"
        raise declared.mistake(f"has {name}={default!r}", remedy, name)
    return QueryParameter(name, type_, default)


def _check_key(declared: Declaration, key: tuple[str, ...], parsed: QuerySql) -> None:
    for name in key:
        if parsed.columns is not None and name not in parsed.columns:
            problem = f"has the key column {name!r}, which is not in its result"
            remedy = suggest(name, [each for each in parsed.columns if each])
            raise declared.mistake(problem, remedy or f"select it, as in … AS {name}", "key")
