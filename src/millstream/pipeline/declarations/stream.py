"""A stream, from what the user wrote."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from millstream.connectors import SourceDescription, WebSocketSource, source_from_text
from millstream.connectors.source_options import type_problem
from millstream.errors import PipelineError, QueryError
from millstream.expression.condition import compile_condition, event_columns
from millstream.pipeline.declarations.option_checks import (
    check_name,
    check_options,
    choice,
    duration,
)
from millstream.pipeline.model import SHED_AT_RANDOM, Delivery, OnInvalid, Stream
from millstream.schema import Field, Primitive, Schema, parse_schema
from millstream.schema.types import INTEGERS
from millstream.syntax.names import suggest
from millstream.syntax.source_location import Statement, mistake
from millstream.values.hidden_columns import RESERVED

STREAM_OPTIONS = (
    *("schema", "key", "event_time", "lateness", "ahead", "delivery", "retention", "source"),
    *("dedup", "on_invalid", "shed", "shed_at", "description"),
)
# Unless the user says something else.
AHEAD = "1 minute"
DEDUP = "1 hour"
SHED_AT = 0.8
_KEY_TYPES = ("string", "boolean", "date", *INTEGERS)


def declare_stream(statement: Statement, name: object, options: Mapping[str, Any]) -> Stream:
    """The stream that the user's call or statement describes."""
    name = check_name(statement, "stream", name)
    what = f"stream {name!r}"
    check_options(statement, what, options, STREAM_OPTIONS)
    schema = _schema(statement, what, options.get("schema"))
    key, event_time = options.get("key"), options.get("event_time")
    if key is not None:
        _check_key(statement, what, schema, key)
    if event_time is not None:
        _check_event_time(statement, what, schema, event_time)
    lateness = duration(statement, what, "lateness", options.get("lateness", "0 seconds"))
    if lateness and event_time is None:
        raise mistake(
            statement,
            f"{what} has a lateness but no event_time to be late by",
            remedy="add event_time= with the column that tells when an event happened",
            option="lateness",
        )
    ahead = options.get("ahead", AHEAD)
    if ahead != AHEAD and event_time is None:
        raise mistake(
            statement,
            f"{what} has ahead but no event_time to be ahead by",
            remedy="add event_time= with the column that tells when an event happened",
            option="ahead",
        )
    retention = duration(statement, what, "retention", options.get("retention", "7 days"))
    if not retention:
        raise mistake(
            statement,
            f"{what} has a retention of nothing",
            remedy="write how long the log keeps events, as in '7 days'",
            option="retention",
        )
    delivery = choice(statement, what, "delivery", options, "exactly_once", Delivery)
    return Stream(
        name=name,
        schema=schema,
        key=key,
        event_time=event_time,
        lateness=lateness,
        ahead=duration(statement, what, "ahead", ahead),
        delivery=delivery,
        retention=retention,
        source=_source(statement, what, options.get("source")),
        dedup=_dedup(statement, what, delivery, options.get("dedup", DEDUP)),
        on_invalid=choice(statement, what, "on_invalid", options, "reject", OnInvalid),
        shed=_shed(statement, what, schema, options),
        shed_at=_shed_at(statement, what, options),
        location=statement.location,
        description=options.get("description") or "",
    )


def _dedup(statement: Statement, what: str, delivery: Delivery, value: object) -> timedelta:
    dedup = duration(statement, what, "dedup", value)
    if dedup and value != DEDUP and delivery != "exactly_once":
        raise mistake(
            statement,
            f"{what} has dedup={value!r} but is {delivery}: no retry is recognised there",
            remedy="leave out dedup=, or declare delivery='exactly_once'",
            option="dedup",
        )
    return dedup


def _shed(
    statement: Statement, what: str, schema: Schema, options: Mapping[str, Any]
) -> str | None:
    shed = options.get("shed")
    if shed is None:
        return None
    if not isinstance(shed, str) or not shed.strip():
        raise mistake(
            statement,
            f"{what} has shed={shed!r}",
            remedy="write 'random', or an SQL condition for what matters least, as in 'debug'",
            option="shed",
        )
    if options.get("delivery", "exactly_once") == "exactly_once":
        raise mistake(
            statement,
            f"{what} is exactly_once, and may shed: an event cannot both count and be dropped",
            remedy="leave out shed=, or declare delivery='at_least_once'",
            option="shed",
        )
    if shed != SHED_AT_RANDOM:
        _check_condition(statement, what, schema, shed)
    return shed


def _check_condition(statement: Statement, what: str, schema: Schema, shed: str) -> None:
    try:
        compile_condition(shed, event_columns(schema), canonical=False, what="the condition")
    except QueryError as error:
        raise mistake(
            statement,
            f"{what} has shed={shed[:100]!r}: {error.message}",
            remedy=error.remedy or "write 'random', or an SQL condition for what matters least",
            option="shed",
        ) from None


def _shed_at(statement: Statement, what: str, options: Mapping[str, Any]) -> float:
    value = options.get("shed_at", SHED_AT)
    try:
        pressure = float(value)
    except (TypeError, ValueError):
        pressure = -1.0
    if not 0 < pressure < 1:
        raise mistake(
            statement,
            f"{what} has shed_at={value!r}",
            remedy="write how full the journal may be before events are dropped, as in 0.8",
            option="shed_at",
        )
    if pressure != SHED_AT and options.get("shed") is None:
        raise mistake(
            statement,
            f"{what} has shed_at={value!r} but no shed to begin with then",
            remedy="add shed= with what may be dropped ('random', or an SQL condition), or leave "
            "out shed_at=",
            option="shed_at",
        )
    return pressure


def _schema(statement: Statement, what: str, described: object) -> Schema:
    if described is None:
        raise mistake(
            statement,
            f"{what} has no schema",
            remedy="give schema= as Spark DDL ('id LONG, at TIMESTAMP') or as a class",
        )
    try:
        return parse_schema(described, RESERVED)
    except PipelineError as error:
        raise mistake(
            statement,
            f"{what}: {error.message}",
            remedy=error.remedy,
            option="schema",
            line=error.line or 1,
        ) from None


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


def _source(statement: Statement, what: str, source: object) -> SourceDescription | None:
    if source is None:
        return None
    in_sql = isinstance(source, str | dict)
    if isinstance(source, str | dict):
        try:
            source = source_from_text(source)
        except ValueError as error:
            wrong, _, remedy = str(error).partition("; ")
            raise mistake(statement, f"{what} {wrong}", remedy=remedy, option="source") from None
    if not isinstance(source, SourceDescription):
        raise mistake(
            statement,
            f"{what} has source={source!r}, which is not a source",
            remedy=f"write source={WebSocketSource.example}, or another of millstream's sources",
            option="source",
        )
    if problem := type_problem(source) or source.problem():
        remedy = f"write source = {source.sql_example}" if in_sql else f"write {source.example}"
        raise mistake(statement, f"{what} {problem}", remedy=remedy, option="source")
    return source
