"""Why an event does not fit its schema, in words for the one who sent it."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from datetime import date
from typing import Any, NamedTuple

import msgspec

from millstream.errors import InvalidEvent
from millstream.scalars import Decimals, Timestamp
from millstream.schema import Array, Map, Primitive, Schema, Struct, Type
from millstream.schema.types import INTEGERS

_LONGEST_VALUE = 80


class _Expectation(NamedTuple):
    what: str
    remedy: str


_EXPECTED = {
    "boolean": _Expectation("true or false", "send a boolean"),
    "float": _Expectation("a number of at most 3.4e38", "send a number"),
    "double": _Expectation("a number", "send a number"),
    "string": _Expectation("a string", "send text"),
    "binary": _Expectation("bytes as base64 text", "send base64 with padding"),
    "date": _Expectation("a date", "send text like '2026-01-31'"),
    "timestamp": _Expectation(
        "a timestamp",
        "send text like '2026-01-31T12:00:00Z' with Z or an offset, or whole milliseconds since 1970",
    ),
}


def explain(schema: Schema, raw: bytes, error: Exception) -> InvalidEvent:
    """The error that tells a sender which field is wrong; `error` is what the decoder said."""
    if isinstance(error, RecursionError):
        return InvalidEvent("objects and arrays are nested too deep", remedy="send it flatter")
    if isinstance(error, UnicodeDecodeError):
        byte = f"byte {raw[error.start]:#04x} at {error.start}"
        return InvalidEvent(f"the event is not UTF-8 text: {byte}", remedy="send JSON in UTF-8")
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError as malformed:
        return _not_json(raw, malformed)
    if not isinstance(value, dict):
        return InvalidEvent(
            f"the event is {_kind(value)}, not an object", remedy='send {"field": value, …}'
        )
    # The decoder checks in the order of the event, this in the order of the schema: any fault will do.
    fault = next(_faults(schema, value, ""), None)
    return fault or InvalidEvent(f"the event does not fit its schema: {error}")


def _not_json(raw: bytes, malformed: msgspec.DecodeError) -> InvalidEvent:
    if not raw.strip():
        return InvalidEvent("the event is empty", remedy="send a JSON object")
    why = str(malformed)
    try:
        json.loads(raw, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        near = (
            _short(error.doc[error.pos : error.pos + 20])
            if error.pos < len(error.doc)
            else "its end"
        )
        why = f"{error.msg[:1].lower()}{error.msg[1:]} at line {error.lineno}, column {error.colno} ({near})"
    except ValueError as error:
        why = str(error)
    except RecursionError:
        why = "nested too deep"
    else:
        # Python's reader is laxer; what it lets through and ours doesn't are broken escapes in texts.
        why = "a text has an escape that stands for no character (half of a \\u surrogate pair)"
    return InvalidEvent(f"the event is not JSON: {why}", remedy="send one JSON object")


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _faults(of: Type, value: object, path: str) -> Iterator[InvalidEvent]:
    """What is wrong with a value that is not null, and with what is in it."""
    match of:
        case Struct(fields):
            if not isinstance(value, dict):
                yield _fault(path, value, _Expectation("an object", "send {…}"), False)
                return
            for field in fields:
                inner = f"{path}.{field.name}" if path else field.name
                if value.get(field.name) is not None:
                    yield from _faults_of_field(
                        field.type, value[field.name], inner, field.required
                    )
                elif field.required:
                    yield _missing(field.type, inner, field.name in value)
        case Array(element):
            if not isinstance(value, list):
                yield _fault(path, value, _Expectation("an array", "send […]"), False)
                return
            for index, each in enumerate(value):
                if each is not None:
                    yield from _faults_of_field(element, each, f"{path}[{index}]", False)
        case Map(element):
            if not isinstance(value, dict):
                yield _fault(path, value, _Expectation("an object", "send {…}"), False)
                return
            for key, each in value.items():
                if each is not None:
                    yield from _faults_of_field(element, each, f"{path}[{_short(key)}]", False)
        case Primitive():
            if not _fits(of, value):
                yield _fault(path, value, _expected(of), True)


def _faults_of_field(of: Type, value: object, path: str, required: bool) -> Iterator[InvalidEvent]:
    for fault in _faults(of, value, path):
        if fault.field == path and not required:
            fault.remedy += " or null"
        yield fault


def _fits(of: Primitive, value: object) -> bool:
    try:
        return _check_primitive(of, value)
    except ValueError:
        return False


def _check_primitive(of: Primitive, value: object) -> bool:
    if of.decimal:
        Decimals.of(*of.decimal).check(value)
        return True
    if of.name in INTEGERS:
        bound = 2 ** (INTEGERS[of.name] - 1)
        return type(value) is int and -bound <= value < bound
    match of.name:
        case "boolean":
            return isinstance(value, bool)
        case "double" | "float":
            largest = 3.4028234663852886e38 if of.name == "float" else 1.7976931348623157e308
            return type(value) in (int, float) and -largest <= value <= largest  # type: ignore[operator]
        case "string":
            return isinstance(value, str)
        case "binary":
            return isinstance(value, str) and _is_base64(value)
        case "date":
            return isinstance(value, str) and len(value) == 10 and bool(date.fromisoformat(value))
        case _:
            Timestamp.check(value)
            return True


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True)) or not text
    except binascii.Error:
        return False


def _expected(of: Type) -> _Expectation:
    match of:
        case Struct() | Map():
            return _Expectation("an object", "send {…}")
        case Array():
            return _Expectation("an array", "send […]")
        case Primitive(name) if name in INTEGERS:
            bound = 2 ** (INTEGERS[name] - 1)
            return _Expectation(
                f"a whole number from {-bound} to {bound - 1}", "send such a number"
            )
        case Primitive() if of.decimal:
            precision, scale = of.decimal
            return _Expectation(
                f"a {of.name}",
                f"send a number, or its text, with at most {precision - scale} digits "
                "before the point",
            )
        case Primitive(name):
            return _EXPECTED[name]


def _fault(path: str, value: object, expected: _Expectation, _: bool) -> InvalidEvent:
    return InvalidEvent(
        f"field {path!r}: expected {expected.what}, got {_short(value)}",
        field=path,
        remedy=expected.remedy,
    )


def _missing(of: Type, path: str, is_null: bool) -> InvalidEvent:
    expected = _expected(of)
    found = "got null" if is_null else "but it is missing"
    return InvalidEvent(
        f"field {path!r}: expected {expected.what}, {found}", field=path, remedy=expected.remedy
    )


def _kind(value: object) -> str:
    match value:
        case list():
            return "an array"
        case str():
            return f"the text {_short(value)}"
        case None:
            return "null"
        case _:
            return f"the value {_short(value)}"


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"
