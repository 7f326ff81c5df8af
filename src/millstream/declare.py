"""Streams and views from what the user wrote, each option checked as far as it can be by itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, get_args
from urllib.parse import urlsplit

from millstream.duration import parse_duration
from millstream.errors import PipelineError
from millstream.model import Delivery, Mode, Reading, Stream, View
from millstream.names import name_like, name_problem, suggest
from millstream.place import Statement, mistake
from millstream.schema import Field, Primitive, Schema, parse_schema
from millstream.schema.types import INTEGERS
from millstream.source import Source, WebSocketSource
from millstream.sql import Query, read_query

STREAM_OPTIONS = (
    *("schema", "key", "event_time", "lateness", "delivery", "retention", "source"),
    "description",
)
VIEW_OPTIONS = ("key", "keep", "mode", "sql", "name", "reads", "description")
_KEY_TYPES = ("string", "boolean", "date", *INTEGERS)
# The reader adds these to every row; see the analyze tier.
_RESERVED = ("_id", "_received_at", "_event_time", "_position", "_revision")


def check_name(statement: Statement, kind: str, name: object) -> str:
    """The name of an app, stream or view, if it can be one."""
    problem = name_problem(name)
    if problem:
        raise mistake(
            statement,
            f"{kind} name {name!r} {problem}",
            remedy=f"write {name_like(str(name))!r}" if isinstance(name, str) else "write a text",
        )
    assert isinstance(name, str)
    return name


def declare_stream(statement: Statement, name: object, options: Mapping[str, Any]) -> Stream:
    """The stream that the user's call or statement describes."""
    name = check_name(statement, "stream", name)
    what = f"stream {name!r}"
    _check_options(statement, what, options, STREAM_OPTIONS)
    schema = _schema(statement, what, options.get("schema"))
    key, event_time = options.get("key"), options.get("event_time")
    if key is not None:
        _check_key(statement, what, schema, key)
    if event_time is not None:
        _check_event_time(statement, what, schema, event_time)
    lateness = _duration(statement, what, "lateness", options.get("lateness", "0 seconds"))
    if lateness and event_time is None:
        raise mistake(
            statement,
            f"{what} has a lateness but no event_time to be late by",
            remedy="add event_time= with the column that tells when an event happened",
            option="lateness",
        )
    retention = _duration(statement, what, "retention", options.get("retention", "7 days"))
    if not retention:
        raise mistake(
            statement,
            f"{what} has a retention of nothing",
            remedy="write how long the log keeps events, as in '7 days'",
            option="retention",
        )
    return Stream(
        name=name,
        schema=schema,
        key=key,
        event_time=event_time,
        lateness=lateness,
        delivery=_choice(statement, what, "delivery", options, "exactly_once", Delivery),
        retention=retention,
        source=_source(statement, what, options.get("source")),
        place=statement.place,
        description=options.get("description") or "",
    )


def declare_view(
    statement: Statement,
    name: object,
    options: Mapping[str, Any],
    function: Callable[..., Any] | None = None,
) -> View:
    """The view that the user's call or statement describes, by a function or by SQL."""
    name = check_name(statement, "view", name)
    what = f"view {name!r}"
    _check_options(statement, what, options, VIEW_OPTIONS)
    key = _view_key(statement, what, options.get("key"))
    sql = options.get("sql")
    if function is not None:
        inputs = _parameters(statement, what, function)
    else:
        query = _query(statement, what, sql)
        inputs = query.inputs
        _check_key_columns(statement, what, key, query)
    keep = options.get("keep")
    return View(
        name=name,
        inputs=inputs,
        key=key,
        keep=_keep(statement, what, keep, key) if keep is not None else None,
        mode=_choice(statement, what, "mode", options, "auto", Mode),
        description=options.get("description") or inspect.getdoc(function) or "",
        function=function,
        sql=sql,
        place=statement.place,
        reads=_reads(statement, what, options.get("reads") or {}, inputs),
    )


def _check_options(
    statement: Statement, what: str, options: Mapping[str, Any], known: tuple[str, ...]
) -> None:
    for option in options:
        if option not in known:
            raise mistake(
                statement,
                f"{what} has an unknown option {option!r}",
                remedy=suggest(option, known),
                option=option,
            )


def _schema(statement: Statement, what: str, described: object) -> Schema:
    if described is None:
        raise mistake(
            statement,
            f"{what} has no schema",
            remedy="give schema= as Spark DDL ('id LONG, at TIMESTAMP') or as a class",
        )
    try:
        schema = parse_schema(described)
    except PipelineError as error:
        raise mistake(
            statement,
            f"{what}: {error.message}",
            remedy=error.remedy,
            option="schema",
            line=error.line or 1,
        ) from None
    for field in schema.fields:
        if field.name.lower() in _RESERVED:
            raise mistake(
                statement,
                f"{what} has a column {field.name!r}, a name that Millstream uses itself",
                remedy="leave that column out of the schema; events may still have the field",
                option="schema",
            )
    return schema


def _column(statement: Statement, what: str, schema: Schema, option: str, name: object) -> Field:
    names = [field.name for field in schema.fields]
    if not isinstance(name, str):
        raise mistake(
            statement,
            f"{what} has {option}={name!r}",
            remedy="write one column's name",
            option=option,
        )
    field = schema.field(name)
    if field is None:
        nested = "." in name and schema.field(name.partition(".")[0]) is not None
        raise mistake(
            statement,
            f"{what} has {option}={name!r}, which is "
            + ("a nested field" if nested else "not a column of its schema"),
            remedy=f"only a top-level column can be the {option}"
            if nested
            else suggest(name, names),
            option=option,
        )
    return field


def _check_key(statement: Statement, what: str, schema: Schema, key: object) -> None:
    field = _column(statement, what, schema, "key", key)
    if not isinstance(field.type, Primitive) or field.type.name not in _KEY_TYPES:
        raise mistake(
            statement,
            f"{what} has key={key!r}, whose values cannot be told apart reliably as text",
            remedy="the key is a column of text, a whole number, BOOLEAN or DATE",
            option="key",
        )


def _check_event_time(statement: Statement, what: str, schema: Schema, event_time: object) -> None:
    field = _column(statement, what, schema, "event_time", event_time)
    if field.type != Primitive("timestamp"):
        raise mistake(
            statement,
            f"{what} has event_time={event_time!r}, which is not a TIMESTAMP",
            remedy=f"declare it as {field.name} TIMESTAMP, or name another column",
            option="event_time",
        )


def _duration(statement: Statement, what: str, option: str, value: object) -> timedelta:
    if isinstance(value, timedelta) and value >= timedelta():
        return value
    try:
        return parse_duration(value if isinstance(value, str) else repr(value))
    except ValueError as error:
        message, _, remedy = str(error).partition("; ")
        raise mistake(
            statement, f"{what} has {option}: {message}", remedy=remedy, option=option
        ) from None


def _keep(statement: Statement, what: str, value: object, key: tuple[str, ...] | None) -> timedelta:
    keep = _duration(statement, what, "keep", value)
    if key is None:
        raise mistake(
            statement,
            f"{what} has keep but no key, and only rows of a table expire",
            remedy="add key=[…], or leave keep out",
            option="keep",
        )
    if not keep:
        raise mistake(
            statement,
            f"{what} keeps its rows for no time",
            remedy="write keep='3 hours', or leave it out to keep them",
            option="keep",
        )
    return keep


def _choice(
    statement: Statement,
    what: str,
    option: str,
    options: Mapping[str, Any],
    default: str,
    choices: Any,
) -> Any:
    value = options.get(option, default)
    known = get_args(choices)
    if value not in known:
        raise mistake(
            statement,
            f"{what} has {option}={value!r}",
            remedy=suggest(str(value), known),
            option=option,
        )
    return value


def _source(statement: Statement, what: str, source: object) -> Source | None:
    if source is None:
        return None
    if not isinstance(source, WebSocketSource):
        raise mistake(
            statement,
            f"{what} has source={source!r}, which is not a source",
            remedy="write source=WebSocketSource('ws://host/path')",
            option="source",
        )
    url = urlsplit(source.url) if isinstance(source.url, str) else None
    if url is None or url.scheme not in ("ws", "wss") or not url.netloc:
        raise mistake(
            statement,
            f"{what} has the source {source.url!r}, which is not the address of a WebSocket",
            remedy="write it as ws://host/path or wss://host/path",
            option="source",
        )
    return source


def _view_key(statement: Statement, what: str, key: object) -> tuple[str, ...] | None:
    if key is None:
        return None
    names = (key,) if isinstance(key, str) else key
    if (
        not isinstance(names, (list, tuple))
        or not names
        or not all(isinstance(name, str) and name for name in names)
        or len(set(names)) < len(names)
    ):
        raise mistake(
            statement,
            f"{what} has key={key!r}",
            remedy="write the names of result columns, each once, as in key=['window', 'topic']",
            option="key",
        )
    return tuple(names)


def _query(statement: Statement, what: str, sql: object) -> Query:
    if not isinstance(sql, str):
        raise mistake(
            statement,
            f"{what} has sql={sql!r}" if sql is not None else f"{what} has no query",
            remedy="write sql='SELECT …', or put @app.view(…) above a function",
        )
    try:
        return read_query(sql)
    except PipelineError as error:
        raise mistake(
            statement,
            f"{what}: {error.message}",
            remedy=error.remedy,
            option="sql",
            line=error.line or 1,
        ) from None


def _check_key_columns(
    statement: Statement, what: str, key: tuple[str, ...] | None, query: Query
) -> None:
    for name in key or ():
        if query.columns is not None and name not in query.columns:
            raise mistake(
                statement,
                f"{what} has the key column {name!r}, which is not in its result",
                remedy=suggest(name, query.columns) or f"select it, as in … AS {name}",
                option="key",
            )


def _parameters(statement: Statement, what: str, function: Callable[..., Any]) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters
    for parameter in parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise mistake(
                statement,
                f"{what} has the parameter {parameter}, which names no input",
                remedy="write one parameter for each stream or view that it reads",
            )
    if not parameters:
        raise mistake(
            statement,
            f"{what} has no parameters, so it reads nothing",
            remedy="name what it reads, as in def "
            f"{getattr(function, '__name__', 'view')}(rsvps): …",
        )
    return tuple(parameters)


def _reads(
    statement: Statement, what: str, reads: object, inputs: tuple[str, ...]
) -> dict[str, Reading]:
    if not isinstance(reads, Mapping):
        raise mistake(
            statement,
            f"{what} has reads={reads!r}",
            remedy="write reads={'by_city': 'changes'} or reads={'by_city': 'reference'}",
            option="reads",
        )
    for name, reading in reads.items():
        if name not in inputs:
            raise mistake(
                statement,
                f"{what} says how it reads {name!r}, but does not read it",
                remedy=suggest(str(name), inputs),
                option="reads",
            )
        if reading not in get_args(Reading):
            raise mistake(
                statement,
                f"{what} reads {name!r} as {reading!r}",
                remedy="write 'changes' (each change is an event) or 'reference' (look rows up)",
                option="reads",
            )
    return dict(reads)
