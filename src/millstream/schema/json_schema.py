"""Writes schemas as JSON Schema, for the API's description."""

from __future__ import annotations

from typing import Any

from millstream.schema.types import INTEGERS, Array, Map, Primitive, Schema, Struct, Type

_PLAIN: dict[str, dict[str, Any]] = {
    "boolean": {"type": "boolean"},
    "float": {"type": "number"},
    "double": {"type": "number"},
    "string": {"type": "string"},
    "binary": {"type": "string", "contentEncoding": "base64"},
    "date": {"type": "string", "format": "date"},
    "timestamp": {
        "description": "RFC 3339 text with an offset, or milliseconds (from 10^11 on) or seconds",
        "anyOf": [{"type": "string", "format": "date-time"}, {"type": "integer"}],
    },
}


def json_schema(schema: Schema) -> dict[str, Any]:
    """The schema of an event as JSON Schema 2020-12; unknown fields are allowed."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_describe(schema)}


def _describe(of: Type) -> dict[str, Any]:
    match of:
        case Primitive(name) if name in INTEGERS:
            bound = 2 ** (INTEGERS[name] - 1)
            return {"type": "integer", "minimum": -bound, "maximum": bound - 1}
        case Primitive() if of.decimal:
            return {"anyOf": [{"type": "number"}, {"type": "string"}], "description": of.name}
        case Primitive(name):
            return dict(_PLAIN[name])
        case Array(element):
            return {"type": "array", "items": _or_null(_describe(element))}
        case Map(value):
            return {"type": "object", "additionalProperties": _or_null(_describe(value))}
        case Struct(fields):
            properties = {}
            for field in fields:
                described = _describe(field.type)
                if field.description:
                    described["description"] = field.description
                properties[field.name] = described if field.required else _or_null(described)
            required = [field.name for field in fields if field.required]
            return {"type": "object", "properties": properties} | (
                {"required": required} if required else {}
            )


def _or_null(described: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in described:
        return {**described, "anyOf": [*described["anyOf"], {"type": "null"}]}
    return {**described, "type": [described["type"], "null"]}
