"""Turns the declaration of a stream into a `Stream`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from millstream.connectors import SourceDescription, WebSocketSource, source_from_text
from millstream.connectors.source_options import type_problem
from millstream.errors import QueryError
from millstream.expression.condition import compile_condition, event_columns
from millstream.pipeline.declarations.declaration import Declaration
from millstream.pipeline.declarations.policy import POLICY_OPTIONS, declare_policy
from millstream.pipeline.model import SHED_AT_RANDOM, Delivery, OnInvalid, Policy, Stream
from millstream.schema import Field, Primitive, Schema, parse_schema
from millstream.schema.types import INTEGERS
from millstream.syntax.names import suggest
from millstream.syntax.source_location import Statement
from millstream.values.hidden_columns import RESERVED

STREAM_OPTIONS = (
    "schema",
    "key",
    "event_time",
    "lateness",
    "ahead",
    "delivery",
    "retention",
    "source",
    "dedup",
    "on_invalid",
    "shed",
    "shed_at",
    "description",
    *POLICY_OPTIONS,
)
# Defaults of options that make no sense without another option.
AHEAD = "1 minute"
DEDUP = "1 hour"
SHED_AT = 0.8
_KEY_TYPES = ("string", "boolean", "date", *INTEGERS)
_ADD_EVENT_TIME = "add event_time= with the column of the time when an event happened"


def declare_stream(statement: Statement, name: object, options: Mapping[str, Any]) -> Stream:
    """The stream that the user's call or statement declares."""
    declared = Declaration.of(statement, "stream", name, options, STREAM_OPTIONS)
    schema = _schema(declared)
    key, event_time = declared.get("key"), declared.get("event_time")
    if key is not None:
        _check_key(declared, schema, key)
    if event_time is not None:
        _check_event_time(declared, schema, event_time)
    lateness = declared.duration("lateness", "0 seconds")
    if lateness and event_time is None:
        problem = "has a lateness but no event_time to be late by"
        raise declared.mistake(problem, _ADD_EVENT_TIME, "lateness")
    if declared.get("ahead", AHEAD) != AHEAD and event_time is None:
        problem = "has ahead but no event_time to be ahead by"
        raise declared.mistake(problem, _ADD_EVENT_TIME, "ahead")
    retention = declared.duration("retention", "7 days")
    if not retention:
        remedy = "write how long the log keeps events, as in '7 days'"
        raise declared.mistake("has a retention of zero", remedy, "retention")
    delivery = declared.choice("delivery", "exactly_once", Delivery)
    return Stream(
        name=declared.name,
        schema=schema,
        key=key,
        event_time=event_time,
        lateness=lateness,
        ahead=declared.duration("ahead", AHEAD),
        delivery=delivery,
        retention=retention,
        source=_source(declared),
        dedup=_dedup(declared, delivery),
        on_invalid=declared.choice("on_invalid", "reject", OnInvalid),
        shed=_shed(declared, schema),
        shed_at=_shed_at(declared),
        location=statement.location,
        description=declared.get("description") or "",
        policy=_policy(declared, schema),
    )


def _policy(declared: Declaration, schema: Schema) -> Policy:
    names = [field.name for field in schema.fields]
    # Any column can be hidden: an event that is read has no key.
    return declare_policy(declared, names, (), event_columns(schema))


def _schema(declared: Declaration) -> Schema:
    described = declared.get("schema")
    if described is None:
        remedy = "give schema= as Spark DDL ('id LONG, at TIMESTAMP') or as a class"
        raise declared.mistake("has no schema", remedy)
    return declared.parse("schema", lambda text: parse_schema(text, RESERVED), described)


def _column(declared: Declaration, schema: Schema, option: str, name: object) -> Field:
    if not isinstance(name, str):
        raise declared.mistake(f"has {option}={name!r}", "write one column's name", option)
    field = schema.field(name)
    if field is not None:
        return field
    if "." in name and schema.field(name.partition(".")[0]) is not None:
        problem, remedy = "a nested field", f"only a top-level column can be the {option}"
    else:
        problem = "not a column of its schema"
        remedy = suggest(name, [field.name for field in schema.fields])
    raise declared.mistake(f"has {option}={name!r}, which is {problem}", remedy, option)


def _check_key(declared: Declaration, schema: Schema, key: object) -> None:
    field = _column(declared, schema, "key", key)
    if not isinstance(field.type, Primitive) or field.type.name not in _KEY_TYPES:
        raise declared.mistake(
            f"has key={key!r}, whose values are not reliably unique as text",
            "the key is a column of text, a whole number, BOOLEAN or DATE",
            "key",
        )


def _check_event_time(declared: Declaration, schema: Schema, event_time: object) -> None:
    field = _column(declared, schema, "event_time", event_time)
    if field.type != Primitive("timestamp"):
        raise declared.mistake(
            f"has event_time={event_time!r}, which is not a TIMESTAMP",
            f"declare it as {field.name} TIMESTAMP, or name another column",
            "event_time",
        )


def _dedup(declared: Declaration, delivery: Delivery) -> timedelta:
    dedup, written = declared.duration("dedup", DEDUP), declared.get("dedup", DEDUP)
    if dedup and written != DEDUP and delivery != "exactly_once":
        raise declared.mistake(
            f"has dedup={written!r} but is {delivery}: no retry is recognised there",
            "leave out dedup=, or declare delivery='exactly_once'",
            "dedup",
        )
    return dedup


def _shed(declared: Declaration, schema: Schema) -> str | None:
    shed = declared.get("shed")
    if shed is None:
        return None
    if not isinstance(shed, str) or not shed.strip():
        remedy = "write 'random', or an SQL condition for what matters least, as in 'debug'"
        raise declared.mistake(f"has shed={shed!r}", remedy, "shed")
    if declared.get("delivery", "exactly_once") == "exactly_once":
        raise declared.mistake(
            "is exactly_once, so it cannot shed: an event cannot both count and be dropped",
            "leave out shed=, or declare delivery='at_least_once'",
            "shed",
        )
    if shed != SHED_AT_RANDOM:
        try:
            compile_condition(shed, event_columns(schema), canonical=False, what="the condition")
        except QueryError as error:
            remedy = error.remedy or "write 'random', or an SQL condition for what matters least"
            problem = f"has shed={shed[:100]!r}: {error.message}"
            raise declared.mistake(problem, remedy, "shed") from None
    return shed


def _shed_at(declared: Declaration) -> float:
    value = declared.get("shed_at", SHED_AT)
    try:
        fill = float(value)
    except (TypeError, ValueError):
        fill = -1.0
    if not 0 < fill < 1:
        remedy = "write how full the journal may be before events are dropped, as in 0.8"
        raise declared.mistake(f"has shed_at={value!r}", remedy, "shed_at")
    if fill != SHED_AT and declared.get("shed") is None:
        raise declared.mistake(
            f"has shed_at={value!r} but no shed",
            "add shed= with what may be dropped ('random', or an SQL condition), or leave out "
            "shed_at=",
            "shed_at",
        )
    return fill


def _source(declared: Declaration) -> SourceDescription | None:
    source = declared.get("source")
    if source is None:
        return None
    in_sql = isinstance(source, str | dict)
    if isinstance(source, str | dict):
        try:
            source = source_from_text(source)
        except ValueError as error:
            problem, _, remedy = str(error).partition("; ")
            raise declared.mistake(problem, remedy, "source") from None
    if not isinstance(source, SourceDescription):
        raise declared.mistake(
            f"has source={source!r}, which is not a source",
            f"write source={WebSocketSource.example}, or another of millstream's sources",
            "source",
        )
    if wrong := type_problem(source) or source.problem():
        remedy = f"write source = {source.sql_example}" if in_sql else f"write {source.example}"
        raise declared.mistake(wrong, remedy, "source")
    return source
