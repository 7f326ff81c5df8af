"""Values that clients give for the parameters of a named query."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from millstream.errors import QueryError
from millstream.pipeline.model import NamedQuery, ParameterType, ParameterValue, QueryParameter
from millstream.syntax.names import suggest

_INTEGERS = 2**63
_MAX_TEXT = 10_000  # characters
_WORDS = {"true": True, "1": True, "false": False, "0": False}


def values_from_texts(
    query: NamedQuery, texts: Mapping[str, str], others: Collection[str] = ()
) -> dict[str, ParameterValue]:
    """The parameters for DuckDB, from a query string; QueryError names the one that is wrong.

    An empty text is NULL, unless the parameter is a string. `others` are names that the query
    string may have as well.
    """
    given = {name: text for name, text in texts.items() if name not in others}
    _check_names(query, given, others)
    return {
        each.name: _from_text(each, given[each.name]) if each.name in given else each.default
        for each in query.parameters
    }


def values_from_json(query: NamedQuery, given: Mapping[str, Any]) -> dict[str, ParameterValue]:
    """The parameters for DuckDB, from JSON; QueryError names the one that is wrong.

    A value is of the parameter's type, or a text as in a query string.
    """
    _check_names(query, given, ())
    return {
        each.name: _from_json(each, given[each.name]) if each.name in given else each.default
        for each in query.parameters
    }


def _check_names(query: NamedQuery, given: Iterable[str], others: Iterable[str]) -> None:
    names = [*(each.name for each in query.parameters), *others]
    for name in given:
        if name not in names:
            raise QueryError(
                f"query {query.name} has no parameter {name[:40]!r}",
                remedy=suggest(name[:40], names) or "call it without parameters",
            )


def _from_text(parameter: QueryParameter, text: str) -> ParameterValue:
    if not text and parameter.type != "string":
        return None
    try:
        value = _READERS[parameter.type](text)
    except (ValueError, KeyError):
        raise _wrong(parameter, text) from None
    return _check_size(parameter, value, text)


def _from_json(parameter: QueryParameter, value: Any) -> ParameterValue:
    if value is None:
        return None
    if isinstance(value, str) and parameter.type != "string":
        return _from_text(parameter, value)
    if parameter.type == "number" and type(value) is int:
        value = float(value) if abs(value) < _INTEGERS else math.inf
    if type(value) is not _TYPES[parameter.type]:
        raise _wrong(parameter, value)
    found: Any = value  # mypy takes it for an object by now
    return _check_size(parameter, found, value)


def _check_size(parameter: QueryParameter, value: ParameterValue, written: Any) -> ParameterValue:
    match value:
        case bool():
            pass
        case int() if not -_INTEGERS <= value < _INTEGERS:
            raise _wrong(parameter, written)
        case float() if not math.isfinite(value):
            raise _wrong(parameter, written)
        case str() if len(value) > _MAX_TEXT:
            raise QueryError(f"parameter {parameter.name} has more than {_MAX_TEXT} characters")
    return value


def _wrong(parameter: QueryParameter, written: object) -> QueryError:
    return QueryError(
        f"parameter {parameter.name} is {str(written)[:40]!r}", remedy=_EXPECTED[parameter.type]
    )


def _integer(text: str) -> int:
    if len(text) > 20:
        raise ValueError
    return int(text)


_READERS: dict[ParameterType, Callable[[str], ParameterValue]] = {
    "string": str,
    "integer": _integer,
    "number": float,
    "boolean": lambda text: _WORDS[text.lower()],
}
_TYPES: dict[ParameterType, type] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
}
_EXPECTED: dict[ParameterType, str] = {
    "string": "write a text",
    "integer": "write a whole number of at most 64 bits",
    "number": "write a number",
    "boolean": "write true or false",
}
