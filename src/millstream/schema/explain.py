"""Explains to a sender why an event does not fit its schema."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from datetime import date
from typing import Any, NamedTuple

import msgspec

from millstream.errors import InvalidEvent
from millstream.schema import Array, Map, Primitive, Schema, Struct, Type
from millstream.schema.scalars import Decimals, Timestamp
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
        "send text like '2026-01-31T12:00:00Z' (ending in Z or an offset) or whole milliseconds",
    ),
}


def explain(schema: Schema, raw: bytes, error: Exception) -> InvalidEvent:
    """The error that names the wrong field; `error` is the decoder's."""
    if isinstance(error, UnicodeDecodeError):
        byte = f"byte {raw[error.start]:#04x} at {error.start}"
        return InvalidEvent(f"the event is not UTF-8 text: {byte}", remedy="send JSON in UTF-8")
    try:
        value = _read(raw)
    except RecursionError:
        return InvalidEvent("objects and arrays are nested too deep", remedy="send it flatter")
    except ValueError as malformed:
        return InvalidEvent(f"the event is not JSON: {malformed}", remedy="send one JSON object")
    if not isinstance(value, dict):
        return InvalidEvent(
            f"the event is {_kind(value)}, not an object", remedy='send {"field": value, …}'
        )
    # With several faults, this may name another one than the decoder did.
    fault = next(_faults(schema, value, ""), None)
    return fault or InvalidEvent(f"the event does not fit its schema: {error}")


def _read(raw: bytes) -> object:
    """The event's value; ValueError says where it is not JSON."""
    try:
        # Python's own parser: it reports line and column, and accepts 1e999.
        value: object = json.loads(raw.decode(), parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        if not error.doc.strip():
            raise ValueError("it is empty") from None
        rest = error.doc[error.pos : error.pos + 20]
        near = f"at {_short(rest)}" if rest else "at its end"
        why = f"{error.msg[:1].lower()}{error.msg[1:]}"
        raise ValueError(f"{why}, line {error.lineno}, column {error.colno}, {near}") from None
    try:
        msgspec.json.decode(raw)
    except msgspec.ValidationError:
        pass  # a number out of range: the schema decides
    except msgspec.DecodeError:
        raise ValueError("a text has half of a \\u surrogate pair, or a control code") from None
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number in JSON")


def _faults(of: Type, value: object, path: str, nullable: bool = False) -> Iterator[InvalidEvent]:
    """The faults of a value that is not null, and of its parts."""
    match of:
        case Struct(fields) if isinstance(value, dict):
            for field in fields:
                inner = f"{path}.{field.name}" if path else field.name
                found = value.get(field.name)
                if found is not None:
                    yield from _faults(field.type, found, inner, not field.required)
                elif field.required:
                    how = "got null" if field.name in value else "but it is missing"
                    yield _fault(field.type, how, inner)
        case Array(element) if isinstance(value, list):
            for index, each in enumerate(value):
                if each is not None:
                    yield from _faults(element, each, f"{path}[{index}]", nullable=True)
        case Map(element) if isinstance(value, dict):
            for key, each in value.items():
                if each is not None:
                    yield from _faults(element, each, f"{path}[{_short(key)}]", nullable=True)
        case Primitive() if _fits(of, value):
            return
        case _:
            yield _fault(of, f"got {_short(value)}", path, nullable)


def _fault(of: Type, found: str, path: str, nullable: bool = False) -> InvalidEvent:
    expected = _expected(of)
    return InvalidEvent(
        f"field {path!r}: expected {expected.what}, {found}",
        field=path,
        remedy=f"{expected.remedy} or null" if nullable else expected.remedy,
    )


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
    # Half of a surrogate pair stays escaped, because the message is written as UTF-8.
    text = json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace").decode()
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"
