"""Validating events, and the errors for invalid ones."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.event_strategies import Case, cases

from millstream.errors import InvalidEvent
from millstream.pipeline.app import App, Stream
from millstream.schema import Array, Map, Primitive, Schema, Struct, Type
from millstream.schema.validate import Validator


def stream(schema: object, **options: Any) -> Stream:
    return App("test").stream("s", schema=schema, **options)  # type: ignore[arg-type]


def check(schema: str, event: object, **options: Any) -> str | None:
    raw = event if isinstance(event, bytes) else json.dumps(event).encode()
    return stream(schema, **options).validator().check(raw).key


def refusal(schema: str, event: object, **options: Any) -> InvalidEvent:
    with pytest.raises(InvalidEvent) as caught:
        check(schema, event, **options)
    return caught.value


@pytest.mark.parametrize(
    ("written", "milliseconds"),
    [
        ("2026-01-31T12:00:00.123456789+18:00", 1_769_796_000_123),
        ("1969-12-31T23:59:59.9999Z", -1),
        (1_700_000_000, 1_700_000_000_000),
        (1_700_000_000_123, 1_700_000_000_123),
        (-1, -1000),
    ],
)
def test_the_event_time_is_returned_in_milliseconds(written: object, milliseconds: int) -> None:
    validator = stream("at TIMESTAMP, too TIMESTAMP", event_time="at").validator()
    assert validator.check(json.dumps({"at": written, "too": 0}).encode()).time == milliseconds
    assert stream("at TIMESTAMP").validator().check(b'{"at": 0}').time is None


# Valid and invalid values of each type.

TAKEN: dict[str, list[Any]] = {
    "TINYINT": [0, -128, 127],
    "SMALLINT": [-32768, 32767],
    "INT": [2**31 - 1],
    "BIGINT": [-(2**63), 2**63 - 1],
    "FLOAT": [1, 1.5, -3.4e38],
    "DOUBLE": [0, 1.5, 1e308, 2**70],
    "BOOLEAN": [True, False],
    "STRING": ["", "ü", "\u0000", "𝄞"],
    "BINARY": ["", "aGk="],
    "DATE": ["2024-02-29", "0001-01-01"],
    "DECIMAL(4,2)": [0, 99, -99.99, "99.99", "1.005", "+1", "1e1", "0", 1e-20, "00000000012"],
    "TIMESTAMP": [
        *(
            "2026-01-31T12:00:00Z",
            "2026-01-31 12:00:00.123456789+18:00",
            "2026-01-31T12:00:00-00:30",
        ),
        *(0, -1, 1_700_000_000, 1_700_000_000_000, 253_402_300_799_999, -62_135_596_800, -(10**11)),
        *("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"),
    ],
    "ARRAY<INT>": [[], [1, None, 2]],
    "MAP<STRING, INT>": [{}, {"a": 1, "": None}],
    "STRUCT<a: INT, b: STRING>": [{}, {"a": 1}, {"b": None, "c": [1]}],
}
REFUSED: dict[str, list[Any]] = {
    "TINYINT": [128, -129, 1.0, "1", True, [], {}],
    "SMALLINT": [32768],
    "INT": [2**31],
    "BIGINT": [2**63, -(2**63) - 1, 10**30],
    "FLOAT": [3.5e38, "1.5"],
    "DOUBLE": ["1", True],
    "BOOLEAN": [0, 1, "true"],
    "STRING": [42, 1.5, True, ["x"], {"a": 1}],
    "BINARY": ["aGk", "!", 5],
    "DATE": ["2023-02-29", "2024-1-1", "2024-01-01T00:00:00Z", "20240101", 19000],
    "DECIMAL(4,2)": [100, 99.996, "100", "x", "NaN", "1e9999", "", "1,5", "١", True, 1e300],
    "TIMESTAMP": [
        *("2026-01-31T12:00:00", "2026-01-31", "2026-02-30T00:00:00Z", "2026-01-31T24:00:00Z"),
        *("2026-01-31T12:00:60Z", "2026-01-31T12:00:00+19:00", "2026-01-31T12:00:00.1234567890Z"),
        *("0001-01-01T00:00:00+18:00", "9999-12-31T23:59:59-00:01", -62_135_596_801, -(10**11) + 1),
        *("now", "", "0000-01-01T00:00:00Z", 1.5, 1_700_000_000_000_000, True, [], {}),
    ],
    "ARRAY<INT>": [{}, 1, "x", ["x"]],
    "MAP<STRING, INT>": [[], {"a": "x"}],
    "STRUCT<a: INT, b: STRING>": [[], 1, {"a": "x"}],
}


@pytest.mark.parametrize(("of", "value"), [(of, v) for of, values in TAKEN.items() for v in values])
def test_a_value_of_the_type_is_accepted(of: str, value: object) -> None:
    check(f"x {of}", {"x": value})
    check(f"x {of} NOT NULL", {"x": value})


@pytest.mark.parametrize(
    ("of", "value"), [(of, v) for of, values in REFUSED.items() for v in values]
)
def test_another_value_is_refused_and_the_field_named(of: str, value: object) -> None:
    error = refusal(f"x {of}", {"x": value})
    assert error.field.startswith("x")
    assert str(error).startswith("field 'x")
    assert error.remedy


# Error messages.


@pytest.mark.parametrize(
    ("schema", "event", "says"),
    [
        (
            "`group` STRUCT<group_city: STRING>",
            {"group": {"group_city": 42}},
            "field 'group.group_city': expected a string, got 42; send text or null",
        ),
        (
            "t ARRAY<STRUCT<n: STRING NOT NULL>>",
            {"t": [{"n": "x"}, {"n": None}]},
            "field 't[1].n': expected a string, got null; send text",
        ),
        ("m MAP<STRING, BOOLEAN>", {"m": {"a b": 1}}, "field 'm[\"a b\"]': expected true or false"),
        ("x INT NOT NULL", {}, "field 'x': expected a whole number from -2147483648 to 2147483647"),
        ("x INT NOT NULL", {}, "but it is missing"),
        ("`a.b` INT", {"a.b": "x"}, "field 'a.b'"),
        ("x INT", {"x": "y" * 5000}, f'got "{"y" * 78}…; send'),
        ("x ARRAY<INT>", {"x": {"a": 1}}, 'expected an array, got {"a": 1}; send […] or null'),
        ("x DECIMAL(5,2)", {"x": 12345}, "at most 3 digits before the point"),
        ("x DOUBLE", b'{"x": 1e999}', "field 'x': expected a number, got Infinity"),
        ("x DECIMAL(5,2)", b'{"x": 1e999}', "field 'x': expected a decimal(5,2), got Infinity"),
        ("x ARRAY<DECIMAL(5,2)>", b'{"x": [1, -1e999]}', "field 'x[1]': expected a decimal(5,2)"),
        ("x DOUBLE", b'{"x": 1%s}' % (b"0" * 400), "field 'x': expected a number, got 1000"),
        ("x BIGINT", b'{"x": 1%s}' % (b"0" * 400), "field 'x': expected a whole number"),
        ("x TIMESTAMP", {"x": "2026-01-31 12:00"}, "2026-01-31T12:00:00Z"),
        ("x INT", b"[1, 2]", "the event is an array, not an object"),
        ("x INT", b"null", "the event is null, not an object"),
        ("x INT", b'"x"', 'the event is the text "x", not an object'),
        ("x INT", b"12", "the event is the value 12, not an object"),
        ("x INT", b"", "the event is not JSON: it is empty"),
        ("x INT", b" \n", "the event is not JSON: it is empty"),
        ("x INT", b"{'x': 1}", "line 1, column 2, at \"'x': 1}\""),
        ("x INT", b'{"x": 1,\n "y": }', 'line 2, column 7, at "}"'),
        ("x INT", b'{"x": 1', "line 1, column 8, at its end"),
        ("x INT", b'{"x": 1} {"x": 2}', 'extra data, line 1, column 10, at "{'),
        ("x INT", b'{"x": 01}', "the event is not JSON"),
        ("x INT", b'{"x": NaN}', "NaN is not a number in JSON"),
        ("x INT", b'{"y": -Infinity}', "-Infinity is not a number in JSON"),
        ("x INT", b'{"y": "\\ud800"}', "half of a \\u surrogate pair"),
        ("x INT", b'{"y": "\x01"}', "invalid control character"),
        ("x INT", b'\xef\xbb\xbf{"x": 1}', "unexpected UTF-8 BOM"),
        ("x INT", b'{"y": "\xff"}', "not UTF-8 text: byte 0xff at 7"),
        ("x INT", '{"x": 1}'.encode("utf-16"), "not UTF-8 text"),
    ],
)
def test_the_error_names_what_is_wrong(schema: str, event: object, says: str) -> None:
    assert says in str(refusal(schema, event))


# Unknown and missing fields, and limits.


def test_unknown_missing_and_null_fields_are_accepted() -> None:
    check("x INT, y STRUCT<z: INT>", {"other": {"deep": [1, {"x": None}]}})
    check("x INT, y STRUCT<z: INT>", {"x": None, "y": None})


def test_of_a_repeated_name_the_last_counts() -> None:
    assert check("x INT", b'{"x": 1, "x": 2}', key="x") == "2"
    refusal("x INT", b'{"x": 1, "x": "2"}')


@pytest.mark.parametrize("opening", [b'{"y":', b"["])
def test_an_event_with_too_many_levels_is_refused(opening: bytes) -> None:
    closing = b"}" if opening[:1] == b"{" else b"]"
    deep = b'{"y":' + opening * 100_000 + b"1" + closing * 100_000 + b"}"
    assert "deep" in str(refusal("x INT", deep))
    unclosed = b'{"y":' + opening * 100_000
    refusal("x INT", unclosed)


def test_a_depth_that_spark_cannot_read_is_refused() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        assert "more than 1000 deep" in str(
            refusal("x INT", b'{"y":' + b"[" * 1000 + b"]" * 1000 + b"}")
        )
        check("x INT", b'{"y":' + b"[" * 999 + b"]" * 999 + b"}")
        check("x INT", {"y": "[" * 5000})
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize(
    "hostile",
    [
        b"[" * 1001 + b'"' + b'\\"' * 400_000,  # an unclosed string with many quotes
        b'{"y":[' + b",".join([b"1" * 1000] * 800) + b"]",  # numbers just short enough
    ],
)
def test_hostile_bytes_are_refused_quickly(hostile: bytes) -> None:
    started = time.process_time()
    refusal("x INT", hostile)
    assert time.process_time() - started < 2  # a naive search takes more than a minute


def test_a_number_that_spark_cannot_read_is_refused_even_in_an_unknown_field() -> None:
    assert "1000 characters" in str(refusal("x INT", b'{"y": 1%s}' % (b"0" * 1000)))
    check("x INT", b'{"y": 1%s}' % (b"0" * 999))
    check("x INT", {"y": "1" * 5000})


def test_a_decimal_that_would_have_a_million_digits_is_refused() -> None:
    assert "exponent" in str(refusal("x DECIMAL(5,2)", b'{"x": 1e-999999}'))
    check("x DECIMAL(5,2), y STRING", {"x": 1, "y": "sha 1e-999999"})


# Keys.


@pytest.mark.parametrize(
    ("of", "value", "key"),
    [
        ("STRING", "a b", "a b"),
        ("STRING", "", ""),
        ("BIGINT", -5, "-5"),
        ("BOOLEAN", True, "true"),
        ("DATE", "2026-01-31", "2026-01-31"),
    ],
)
def test_the_key_is_text_as_it_is_and_anything_else_as_json(
    of: str, value: object, key: str
) -> None:
    assert check(f"x {of}", {"x": value}, key="x") == key


def test_a_stream_without_a_key_has_no_key() -> None:
    assert check("x INT", {"x": 1}) is None


def test_key_and_event_time_are_required() -> None:
    assert refusal("x INT, t TIMESTAMP", {"t": 1}, key="x", event_time="t").field == "x"
    assert refusal("x INT, t TIMESTAMP", {"x": 1, "t": None}, key="x", event_time="t").field == "t"


# Properties.


def validator(schema: Schema) -> Validator:
    return Validator(schema)


@given(cases, st.dictionaries(st.text(min_size=8, max_size=9), st.integers() | st.text()))
def test_every_event_that_fits_the_schema_is_accepted(case: Case, more: dict[str, Any]) -> None:
    validator(case.schema).check(json.dumps({**more, **case.event}).encode())


# Values that are valid for no other type.
STRANGERS: list[Any] = [True, 1.5, "…", ["…", 1.5], {"…": "…"}]


def fits(of: Type, value: object) -> bool:
    match of:
        case Primitive("boolean"):
            return value is True
        case Primitive("float" | "double"):
            return value == 1.5
        case Primitive("string"):
            return value == "…"
        case Primitive():
            return bool(of.decimal) and value == 1.5
        case Array():
            return isinstance(value, list)
        case Map() | Struct():
            return isinstance(value, dict)


def places(of: Type, value: Any, path: str, set_: Any) -> list[tuple[str, Type, Any]]:
    """Every part of a value, with its path, its type, and a function that replaces it."""
    found = [(path, of, set_)] if path else []
    match of:
        case Struct(fields):
            for each in fields:
                if value.get(each.name) is not None:
                    inner = f"{path}.{each.name}" if path else each.name
                    put = _put(value, each.name)
                    found += places(each.type, value[each.name], inner, put)
        case Array(element):
            for index, each in enumerate(value):
                if each is not None:
                    found += places(element, each, f"{path}[{index}]", _put(value, index))
        case Map(element):
            for key, each in value.items():
                if each is not None:
                    inner = f"{path}[{json.dumps(key, ensure_ascii=False)}]"
                    found += places(element, each, inner, _put(value, key))
    return found


def _put(into: Any, at: Any) -> Any:
    return lambda value: into.__setitem__(at, value)


@given(cases, st.data())
def test_an_event_with_one_wrong_value_is_refused_for_that_value(
    case: Case, data: st.DataObject
) -> None:
    candidates = places(case.schema, case.event, "", None)
    assume(candidates)
    path, of, put = data.draw(st.sampled_from(candidates))
    wrong = data.draw(st.sampled_from([each for each in STRANGERS if not fits(of, each)]))
    put(wrong)
    with pytest.raises(InvalidEvent) as caught:
        validator(case.schema).check(json.dumps(case.event).encode())
    assert caught.value.field == path


@given(cases, st.data())
def test_an_event_that_lacks_a_required_field_is_refused_for_it(
    case: Case, data: st.DataObject
) -> None:
    required = [field.name for field in case.schema.fields if field.required]
    assume(required)
    name = data.draw(st.sampled_from(required))
    if data.draw(st.booleans()):
        del case.event[name]
    else:
        case.event[name] = None
    with pytest.raises(InvalidEvent) as caught:
        validator(case.schema).check(json.dumps(case.event).encode())
    assert caught.value.field == name


ANYTHING = stream("x INT, t TIMESTAMP, d DECIMAL(9,3), s STRUCT<a: ARRAY<DOUBLE>>").validator()


@given(st.binary() | st.text().map(str.encode) | st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("xtdsa"), inner),
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_any_bytes_raise_nothing_but_invalid_event(raw: bytes) -> None:
    with contextlib.suppress(InvalidEvent):
        ANYTHING.check(raw)


@given(cases)
def test_half_an_event_is_refused(case: Case) -> None:
    raw = json.dumps(case.event).encode()
    with pytest.raises(InvalidEvent, match="not JSON"):
        validator(case.schema).check(raw[: len(raw) // 2])
