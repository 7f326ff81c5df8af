"""Validates the bytes of events against their stream's schema."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable
from datetime import date
from typing import Annotated, Any

import msgspec

from millstream.errors import InvalidEvent
from millstream.schema import Array, Map, Primitive, Schema, Struct, Type
from millstream.schema.explain import explain
from millstream.schema.nesting import blank_strings, is_deeper
from millstream.schema.scalars import Decimals, EventTime, Timestamp
from millstream.schema.types import INTEGERS

# Limits of Spark's JSON reader (Jackson): numbers of 1,000 characters, 1,000 levels.
_LONGEST_NUMBER = 1000
_DEEPEST = 1000
_SAMPLE = _LONGEST_NUMBER // 2
# Matches only at a number's start: else the search would try each of its digits.
_LONG_NUMBER = re.compile(rb"(?<![-+.0-9eE])[-+.0-9eE]{%d}" % (_LONGEST_NUMBER + 1))
_PART_OF_NUMBER = re.compile(rb"[-+.0-9eE]{2}")
_HUGE_EXPONENT = re.compile(rb"[0-9][eE][-+]?[0-9]{4}")
_PATH = re.compile(r"(?:at `\$\.|required field `)([^`]+)`")  # in the decoder's message
_FLOAT_MAX = 3.4028234663852886e38


class ValidatedEvent(msgspec.Struct, frozen=True, gc=False):
    """The key and event time of a valid event."""

    key: str | None
    time: int | None  # in milliseconds since the epoch; None if the stream has no event time


class Validator:
    """Validates events of one stream. It is compiled once; each event is decoded once.

    Unknown fields are allowed. If an object has a name twice, the last one counts, as in Spark.
    """

    def __init__(
        self, schema: Schema, *, key: str | None = None, event_time: str | None = None
    ) -> None:
        self._schema = schema.requiring(key, event_time)
        event, attributes = _compile_struct(self._schema, event_time)
        self._decode = msgspec.json.Decoder(event, dec_hook=_decode_scalar).decode
        self._key = _key_reader(schema, key, attributes)
        self._time: Callable[[Any], int | None] = _nothing
        if event_time is not None:
            self._time = operator.attrgetter(f"{attributes[event_time]}.milliseconds")
        self._has_decimals = _has_decimals(self._schema)

    def check(self, raw: bytes, in_full: bool = True) -> ValidatedEvent:
        """The key and time of a valid event; InvalidEvent names field, value and expectation.

        Unless `in_full`, the error has the decoder's message only, for a tenth of the work.
        """
        try:
            # msgspec does not check the encoding of unknown fields.
            raw.decode()
            if len(raw) > _LONGEST_NUMBER:
                _check_limits(raw)
            if self._has_decimals and _HUGE_EXPONENT.search(raw):
                _check_exponents(raw)
            event = self._decode(raw)
            return ValidatedEvent(self._key(event), self._time(event))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if in_full:
                raise explain(self._schema, raw, error) from None
            raise _short_error(error) from None


def _short_error(error: Exception) -> InvalidEvent:
    words = str(error)
    found = _PATH.search(words)
    return InvalidEvent(
        f"the event does not fit its schema: {words}", field=found[1] if found else ""
    )


def _check_limits(raw: bytes) -> None:
    """InvalidEvent for what Spark cannot read; a cheap test comes first."""
    # A number that is too long covers at least two adjacent samples.
    if _PART_OF_NUMBER.search(raw[::_SAMPLE]) and _LONG_NUMBER.search(blank_strings(raw)):
        raise InvalidEvent(
            f"a number has more than {_LONGEST_NUMBER} characters", remedy="send it as text"
        )
    if is_deeper(raw, _DEEPEST):
        raise InvalidEvent(
            f"objects and arrays are nested more than {_DEEPEST} deep", remedy="send it flatter"
        )


def _check_exponents(raw: bytes) -> None:
    """InvalidEvent for 1e-99999: as a decimal, Spark would write out all of its digits."""
    if _HUGE_EXPONENT.search(blank_strings(raw)):
        raise InvalidEvent("a number has an exponent of four digits", remedy="send a smaller one")


def _compile_struct(
    struct: Struct, event_time: str | None = None
) -> tuple[type[msgspec.Struct], dict[str, str]]:
    """A msgspec class for the struct, and its attribute for each field."""
    attributes = {field.name: f"f{index}" for index, field in enumerate(struct.fields)}
    fields: list[Any] = []
    for field in struct.fields:
        kind = EventTime if field.name == event_time else _compile(field.type)
        attribute = attributes[field.name]
        fields.append((attribute, kind) if field.required else (attribute, kind | None, None))
    compiled = msgspec.defstruct(
        "Event",
        fields,
        rename={attribute: name for name, attribute in attributes.items()},
        kw_only=True,
        gc=False,
    )
    return compiled, attributes


def _compile(of: Type) -> Any:
    match of:
        case Struct():
            return _compile_struct(of)[0]
        case Array(element):
            return list[_compile(element) | None]  # type: ignore[misc]
        case Map(value):
            return dict[str, _compile(value) | None]  # type: ignore[misc]
        case Primitive(name):
            return _compile_primitive(of, name)


def _compile_primitive(of: Primitive, name: str) -> Any:
    if name in INTEGERS:
        bound = 2 ** (INTEGERS[name] - 1)
        return Annotated[int, msgspec.Meta(ge=-bound, le=bound - 1)]
    if of.decimal:
        return Decimals.of(*of.decimal)
    return {
        "boolean": bool,
        "float": Annotated[float, msgspec.Meta(ge=-_FLOAT_MAX, le=_FLOAT_MAX)],
        "double": float,
        "string": str,
        "binary": bytes,
        "date": date,
        "timestamp": Timestamp,
    }[name]


def _decode_scalar(kind: Any, value: object) -> object:
    return kind.check(value)


def _key_reader(
    schema: Schema, key: str | None, attributes: dict[str, str]
) -> Callable[[Any], str | None]:
    if key is None:
        return _nothing
    field = schema.field(key)
    assert field is not None
    attribute = attributes[key]
    as_text: Callable[[Any], str] = str
    if field.type == Primitive("boolean"):
        as_text = _json_bool
    elif field.type == Primitive("string"):
        return operator.attrgetter(attribute)
    return functools.partial(_read_key, attribute, as_text)


def _read_key(attribute: str, as_text: Callable[[Any], str], event: Any) -> str:
    return as_text(getattr(event, attribute))


def _nothing(event: Any) -> None:
    return None


def _json_bool(value: bool) -> str:
    return "true" if value else "false"


def _has_decimals(of: Type) -> bool:
    match of:
        case Primitive():
            return of.decimal is not None
        case Array(inner) | Map(inner):
            return _has_decimals(inner)
        case Struct(fields):
            return any(_has_decimals(field.type) for field in fields)
