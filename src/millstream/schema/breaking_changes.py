"""Finds the changes of a stream's schema that the events in the log may not fit.

Allowed are: a new optional field, a wider number, a field that is no longer required. Every event
that fits the old schema must fit the new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from millstream.schema.ddl import type_ddl
from millstream.schema.types import INTEGERS, Array, Field, Map, Primitive, Schema, Struct, Type

_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}


@dataclass(frozen=True, slots=True)
class StreamSchema:
    """The schema of a stream's events, with its key and event time."""

    schema: Schema
    key: str | None
    event_time: str | None

    def required(self) -> Schema:
        """The schema, with key and event time NOT NULL."""
        return self.schema.requiring(self.key, self.event_time)


@dataclass(frozen=True, slots=True)
class BreakingChange:
    """A change that events in the log may not fit, in words for the pipeline's author."""

    field: str  # its path, as in `group.city` or `tags[]`; empty: the whole stream
    before: str
    after: str
    why: str

    def __str__(self) -> str:
        what = f"field {self.field!r}" if self.field else "the stream"
        return f"{what} {self.before}, now {self.after}: {self.why}"


def breaking_changes(before: StreamSchema, after: StreamSchema) -> list[BreakingChange]:
    """The breaking changes, in the order of the schema; none if every old event still fits."""
    found = []
    for what, old, new in (
        ("key", before.key, after.key),
        ("event_time", before.event_time, after.event_time),
    ):
        if old != new:
            why = (
                "the order of old and new events of the same key would not hold"
                if what == "key"
                else "old and new events would be sorted by different times"
            )
            found.append(BreakingChange("", f"had {_named(what, old)}", _named(what, new), why))
    return [*found, *_struct(before.required(), after.required(), "")]


def _named(what: str, value: str | None) -> str:
    return f"{what} {value!r}" if value is not None else f"no {what}"


def _struct(before: Struct, after: Struct, path: str) -> Iterator[BreakingChange]:
    for old in before.fields:
        name = f"{path}{old.name}"
        new = after.field(old.name)
        if new is None:
            yield BreakingChange(
                name, f"was {_of(old)}", "is gone", "what old events have there is no longer read"
            )
            continue
        if new.required and not old.required:
            yield BreakingChange(
                name, f"was {_of(old)}", f"is {_of(new)}", "old events may lack it"
            )
        yield from _type(old.type, new.type, name)
    for new in after.fields:
        if new.required and before.field(new.name) is None:
            yield BreakingChange(
                f"{path}{new.name}", "was not there", f"is {_of(new)}", "old events lack it"
            )


def _type(before: Type, after: Type, path: str) -> Iterator[BreakingChange]:
    match before, after:
        case Struct(), Struct():
            yield from _struct(before, after, f"{path}.")
        case Array(old), Array(new):
            yield from _type(old, new, f"{path}[]")
        case Map(old), Map(new):
            yield from _type(old, new, f"{path}[]")
        case _ if before != after and not _is_wider(before, after):
            yield BreakingChange(
                path,
                f"was {_ddl(before)}",
                f"is {_ddl(after)}",
                "old values may not fit" if _is_wider(after, before) else "old values do not fit",
            )


def _is_wider(before: Type, after: Type) -> bool:
    """Whether the type `after` has an exact value for every value of `before`."""
    if not isinstance(before, Primitive) or not isinstance(after, Primitive):
        return False
    if before.name in INTEGERS:
        if after.name in INTEGERS:
            return INTEGERS[before.name] <= INTEGERS[after.name]
        if after.decimal:
            return after.decimal[0] - after.decimal[1] >= _DIGITS[before.name]
        return after.name == "double" and INTEGERS[before.name] <= 32
    if before.decimal and after.decimal:
        whole = after.decimal[0] - after.decimal[1] >= before.decimal[0] - before.decimal[1]
        return whole and after.decimal[1] >= before.decimal[1]
    return (before.name, after.name) == ("float", "double")


def _ddl(of: Type) -> str:
    return type_ddl(of).upper() if isinstance(of, Primitive) else type_ddl(of)


def _of(field: Field) -> str:
    return f"{_ddl(field.type)} NOT NULL" if field.required else _ddl(field.type)
