"""Schemas of events: one description for the validator, Spark's reader and the API."""

from __future__ import annotations

from collections.abc import Container

from millstream.schema.classes import read_class
from millstream.schema.ddl import read_ddl, to_ddl, type_ddl
from millstream.schema.json_schema import json_schema
from millstream.schema.types import Array, Field, Map, Primitive, Schema, Struct, Type

__all__ = [
    "Array",
    "Field",
    "Map",
    "Primitive",
    "Schema",
    "Struct",
    "Type",
    "json_schema",
    "parse_schema",
    "to_ddl",
    "type_ddl",
]


def parse_schema(description: object, reserved: Container[str] = ()) -> Schema:
    """The schema that Spark DDL or a class describes; PipelineError (without a file) if none.

    The error's line counts from the first line of the DDL. A top-level field may not have a
    `reserved` name.
    """
    if isinstance(description, str):
        return read_ddl(description, reserved)
    return read_class(description, reserved)
