"""One description of a stream's events, from which the validator, Spark's reader and the API come."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Primitive:
    """A Spark type without parts, by its DDL name: `bigint`, `string`, `decimal(10,2)` …"""

    name: str


@dataclass(frozen=True, slots=True)
class Array:
    element: Type


@dataclass(frozen=True, slots=True)
class Map:
    """Keys are strings, as JSON has no others."""

    value: Type


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: Type
    required: bool


@dataclass(frozen=True, slots=True)
class Struct:
    fields: tuple[Field, ...]


Type = Primitive | Array | Map | Struct
Schema = Struct
