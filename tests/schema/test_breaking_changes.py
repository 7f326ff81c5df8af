"""A schema may change as long as old events still fit."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.event_strategies import Case, cases, structs, types

from millstream import App
from millstream.errors import InvalidEvent
from millstream.schema import Schema, Struct, parse_schema, to_ddl
from millstream.schema.breaking_changes import StreamSchema, breaking_changes


def broken(before: str, after: str) -> dict[str, str]:
    found = breaking_changes(
        StreamSchema(parse_schema(before), None, None),
        StreamSchema(parse_schema(after), None, None),
    )
    return {each.field: str(each) for each in found}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a INT", "a INT"),
        ("a INT", "a INT COMMENT 'new words', b STRING"),
        ("a INT, b INT", "b INT, a INT"),
        ("a INT", "a LONG"),
        ("a TINYINT", "a SMALLINT"),
        ("a INT", "a DOUBLE"),
        ("a FLOAT", "a DOUBLE"),
        ("a LONG", "a DECIMAL(19,0)"),
        ("a DECIMAL(10,2)", "a DECIMAL(12,4)"),
        ("a INT NOT NULL", "a INT"),
        ("a INT NOT NULL", "a LONG NOT NULL"),
        ("a STRUCT<b: INT NOT NULL>", "a STRUCT<b: LONG, c: STRING>"),
        ("a ARRAY<INT>", "a ARRAY<LONG>"),
        ("a MAP<STRING, FLOAT>", "a MAP<STRING, DOUBLE>"),
        ("a ARRAY<STRUCT<b: INT>>", "a ARRAY<STRUCT<b: INT, c: DATE>>"),
    ],
)
def test_a_change_that_old_events_fit_is_allowed(before: str, after: str) -> None:
    assert broken(before, after) == {}


@pytest.mark.parametrize(
    ("before", "after", "field", "words"),
    [
        ("a INT, b STRING", "a INT", "b", "was STRING, now is gone"),
        ("a INT", "a INT, b DATE NOT NULL", "b", "was not there, now is DATE NOT NULL"),
        ("a INT", "a INT NOT NULL", "a", "was INT, now is INT NOT NULL"),
        ("a LONG", "a INT", "a", "was BIGINT, now is INT: old values may not fit"),
        ("a DOUBLE", "a FLOAT", "a", "was DOUBLE, now is FLOAT"),
        ("a LONG", "a DOUBLE", "a", "was BIGINT, now is DOUBLE"),
        ("a LONG", "a DECIMAL(18,0)", "a", "was BIGINT, now is DECIMAL(18,0)"),
        ("a DECIMAL(10,2)", "a DECIMAL(10,3)", "a", "now is DECIMAL(10,3)"),
        ("a INT", "a STRING", "a", "was INT, now is STRING: old values do not fit"),
        ("a STRING", "a TIMESTAMP", "a", "was STRING, now is TIMESTAMP"),
        ("a STRUCT<b: INT, c: INT>", "a STRUCT<b: INT>", "a.c", "was INT, now is gone"),
        ("a ARRAY<LONG>", "a ARRAY<INT>", "a[]", "was BIGINT, now is INT"),
        ("a MAP<STRING, LONG>", "a MAP<STRING, INT>", "a[]", "was BIGINT, now is INT"),
        ("a ARRAY<STRUCT<b: INT>>", "a ARRAY<STRUCT<c: INT>>", "a[].b", "now is gone"),
        ("a STRUCT<b: INT>", "a MAP<STRING, INT>", "a", "was struct<b: int>"),
        ("a INT", "A INT", "a", "now is gone"),
    ],
)
def test_a_breaking_change_is_reported_with_before_and_after(
    before: str, after: str, field: str, words: str
) -> None:
    assert words in broken(before, after)[field]


def test_every_breaking_change_is_reported() -> None:
    assert set(broken("a LONG, b INT, c INT", "a INT, c STRING, d INT NOT NULL")) == set("abcd")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (("a", None), ("b", None), "the stream had key 'a', now key 'b'"),
        ((None, None), ("a", None), "the stream had no key, now key 'a'"),
        (("a", None), (None, None), "the stream had key 'a', now no key"),
        ((None, "t"), (None, "u"), "the stream had event_time 't', now event_time 'u'"),
        ((None, None), (None, "t"), "the stream had no event_time"),
    ],
)
def test_another_key_or_event_time_breaks(
    before: tuple[str | None, str | None], after: tuple[str | None, str | None], words: str
) -> None:
    schema = parse_schema("a INT, b INT, t TIMESTAMP, u TIMESTAMP")
    assert words in str(
        breaking_changes(StreamSchema(schema, *before), StreamSchema(schema, *after))[0]
    )


def test_a_field_that_becomes_the_key_must_have_been_there_always() -> None:
    schema = parse_schema("a INT")
    found = breaking_changes(StreamSchema(schema, None, None), StreamSchema(schema, "a", None))
    assert [each.field for each in found] == ["", "a"]


@given(structs(types))
def test_the_same_schema_breaks_nothing_even_after_it_was_stored(schema: Schema) -> None:
    again = parse_schema(to_ddl(schema))
    assert breaking_changes(StreamSchema(schema, None, None), StreamSchema(again, None, None)) == []


@settings(max_examples=200)
@given(cases, structs(types), st.data())
def test_a_schema_without_breaking_changes_accepts_every_old_event(
    case: Case, other: Schema, data: st.DataObject
) -> None:
    """Without breaking changes, every event of the old schema fits the new one."""
    known = {field.name for field in case.schema.fields}
    added = [field for field in other.fields if field.name not in known]
    dropped = data.draw(st.sets(st.sampled_from(sorted(known)), max_size=1))
    kept = [field for field in case.schema.fields if field.name not in dropped]
    after = Struct((*kept, *added)) if kept or added else case.schema
    if breaking_changes(StreamSchema(case.schema, None, None), StreamSchema(after, None, None)):
        return
    stream = App("app").stream("s", schema=to_ddl(after))
    stream.validator().check(json.dumps(case.event).encode())


@settings(max_examples=300)
@given(
    st.sampled_from(
        ["TINYINT", "INT", "LONG", "FLOAT", "DOUBLE", "DECIMAL(5,2)", "DECIMAL(38,18)", "STRING"]
    ),
    st.sampled_from(
        ["TINYINT", "INT", "LONG", "FLOAT", "DOUBLE", "DECIMAL(5,2)", "DECIMAL(38,18)", "STRING"]
    ),
    st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
)
def test_a_wider_type_accepts_every_value_of_the_narrower_one(
    before: str, after: str, value: object
) -> None:
    if broken(f"a {before}", f"a {after}"):
        return
    raw = json.dumps({"a": value}).encode()
    try:
        App("one").stream("s", schema=f"a {before}").validator().check(raw)
    except InvalidEvent:
        return
    App("two").stream("s", schema=f"a {after}").validator().check(raw)
