"""Spark reads every event with the meaning that the collector gave it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from millstream import App
from millstream.analyze.records.reader import parse_events
from millstream.pipeline.model import Stream

RECORD = """value BINARY, partition INT, offset BIGINT, timestamp TIMESTAMP,
    headers ARRAY<STRUCT<key: STRING, value: BINARY>>"""
RECEIVED = datetime(2026, 11, 16, 10, 0, 0, 123000, tzinfo=UTC)


def read(spark: SparkSession, schema: str, *values: dict[str, Any], **options: Any) -> DataFrame:
    stream: Stream = App("app").stream("s", schema=schema, **options)
    validator = stream.validator()
    rows = []
    for offset, value in enumerate(values):
        raw = json.dumps(value).encode()
        validator.check(raw)
        rows.append((bytearray(raw), 3, offset, RECEIVED, [("ce_id", bytearray(b"e-1"))]))
    return parse_events(spark.createDataFrame(rows, RECORD), stream)


TIMES = {
    "milliseconds": (1_794_819_645_500, "2026-11-16 09:00:45.5"),
    "seconds": (1_794_819_645, "2026-11-16 09:00:45"),
    "the first count of milliseconds": (100_000_000_000, "1973-03-03 09:46:40"),
    "the last count of seconds": (99_999_999_999, "5138-11-16 09:46:39"),
    "before 1970": (-1, "1969-12-31 23:59:59"),
    "UTC": ("2026-11-16T09:00:45Z", "2026-11-16 09:00:45"),
    "an offset": ("2026-11-16T10:00:45+01:00", "2026-11-16 09:00:45"),
    "microseconds": ("2026-11-16T09:00:45.123456Z", "2026-11-16 09:00:45.123456"),
    "null": (None, None),
}


def test_times_are_text_or_numbers_at_any_depth(spark: SparkSession) -> None:
    schema = "t TIMESTAMP, a ARRAY<TIMESTAMP>, m MAP<STRING, TIMESTAMP>, s STRUCT<t: TIMESTAMP>"
    written = [
        {"t": each, "a": [each], "m": {"k": each}, "s": {"t": each}} for each, _ in TIMES.values()
    ]
    frame = read(spark, schema, *written, {})
    found = frame.selectExpr(
        *(f"string({each})" for each in ("t", "a[0]", "m['k']", "s.t")), "s IS NULL"
    ).collect()
    for row, (name, (_, expected)) in zip(found, TIMES.items(), strict=False):
        assert list(row) == [expected] * 4 + [False], name
    assert list(found[-1]) == [None] * 4 + [True], "a struct that is not there is not there"


def test_every_type_that_a_schema_can_have_is_read(spark: SparkSession) -> None:
    schema = """`a b` STRING, i INT, l LONG, d DOUBLE, b BOOLEAN, e DECIMAL(10,2), f DECIMAL(10,2),
        day DATE, deep ARRAY<STRUCT<x: MAP<STRING, INT>>>"""
    value = {
        "a b": "ü",
        "i": -1,
        "l": 2**63 - 1,
        "d": 3,
        "b": True,
        "e": 1.25,
        "f": "1.25",
        "day": "2026-11-16",
        "deep": [{"x": {"k": 1}}],
        "unknown": 1,
    }
    row = read(spark, schema, value).collect()[0].asDict(recursive=True)
    amount = Decimal("1.25")
    day = datetime(2026, 11, 16, tzinfo=UTC).date()
    known = {name: each for name, each in value.items() if name != "unknown"}
    assert row == {**known, "d": 3.0, "e": amount, "f": amount, "day": day}


def test_hidden_columns_can_be_named_but_are_not_in_select_star(spark: SparkSession) -> None:
    frame = read(spark, "n INT, t TIMESTAMP", {"n": 1, "t": 1}, {"n": 1, "t": 1}, event_time="t")
    assert frame.columns == frame.select("*").columns == ["n", "t"]
    assert frame.dropDuplicates().count() == 1
    named = frame.select("_id", "_position.*", "_received_at", "_event_time").collect()[1]
    assert named[:4] == ("e-1", "s", 3, 1)
    assert named["_received_at"].timestamp() == RECEIVED.timestamp()
    assert named["_event_time"].timestamp() == 1


UNREADABLE = [
    b"",
    b"no JSON",
    b"\xff\xfe\x00",
    b'{"n": 1',
    b"[1, 2]",
    b"7",
    b"null",
    b'{"n": "\\ud800"}',
    b'{"n": ' + b"1" * 2000 + b"}",
    b'{"x": ' + b"[" * 3000 + b"]" * 3000 + b"}",
]
PARTLY = [
    (b'{"n": "seven", "t": 5, "a": [1], "s": {"d": "2026-11-16"}, "b": true}', "n"),
    (b'{"n": 2147483648, "t": 5, "a": [1], "s": {"d": "2026-11-16"}, "b": true}', "n"),
    (b'{"n": 1, "t": 9223372036854775807, "a": [1], "s": {"d": "2026-11-16"}, "b": true}', "t"),
    (b'{"n": 1, "t": -9223372036854775808, "a": [1], "s": {"d": "2026-11-16"}, "b": true}', "t"),
    (b'{"n": 1, "t": 99999999999999999999, "a": [1], "s": {"d": "2026-11-16"}, "b": true}', "t"),
    (b'{"n": 1, "t": "long ago", "a": [1], "s": {"d": "2026-11-16"}, "b": true}', "t"),
    (b'{"n": 1, "t": 5, "a": {"0": 1}, "s": {"d": "2026-11-16"}, "b": true}', "a"),
    (b'{"n": 1, "t": 5, "a": [1], "s": "none", "b": true}', "s"),
    (b'{"n": 1, "t": 5, "a": [1], "s": {"d": "2026-11-16"}, "b": "yes"}', "b"),
]


def test_an_event_that_does_not_match_the_schema_is_null_and_does_not_fail(
    spark: SparkSession,
) -> None:
    schema = "n INT NOT NULL, t TIMESTAMP, a ARRAY<INT>, s STRUCT<d: DATE>, b BOOLEAN"
    stream: Stream = App("app").stream("s", schema=schema, event_time="t", on_invalid="keep")
    raws = [*UNREADABLE, *(raw for raw, _ in PARTLY)]
    none: list[Any] = []
    rows = [(bytearray(raw), 0, offset, RECEIVED, none) for offset, raw in enumerate(raws)]
    frame = parse_events(spark.createDataFrame(rows, RECORD), stream)
    shown = ["n", "string(t)", "a", "string(s.d)", "b", "_position.offset"]
    found = sorted(frame.selectExpr(*shown).collect(), key=lambda row: row[-1])
    assert len(found) == len(raws), "each event is a row: none is lost, and none ends the query"
    for row in found[: len(UNREADABLE)]:
        assert list(row)[:-1] == [None] * 5, raws[row[-1]]
    for row, (raw, wrong) in zip(found[len(UNREADABLE) :], PARTLY, strict=True):
        fields = dict(zip("ntasb", row, strict=False))
        assert fields[wrong] is None, raw
        assert sum(value is None for value in fields.values()) == 1, (raw, fields)
    assert frame.where("n IS NULL").count() == len(UNREADABLE) + 2  # NOT NULL is not believed


@pytest.mark.parametrize("name", ["with space", "dot.ted", "back`tick"])
def test_a_column_may_have_any_name(spark: SparkSession, name: str) -> None:
    quoted = "`" + name.replace("`", "``") + "`"
    frame = read(spark, f"{quoted} TIMESTAMP", {name: 5}, event_time=name)
    assert frame.collect()[0][0].timestamp() == 5


def test_an_event_is_parsed_only_once(spark: SparkSession) -> None:
    value = {"id": 1, "city": "Delhi", "at": "2026-11-16T09:00:45Z"}
    schema = "id LONG, city STRING, at TIMESTAMP"
    frame = read(spark, schema, value, {**value, "id": 7}, event_time="at")
    wanted = frame.where("city LIKE 'D%' AND id < 5 AND at > '2026-01-01'").select("id", "at")
    assert [row.id for row in wanted.collect()] == [1]
    plan = str(wanted._jdf.queryExecution().executedPlan().toString())
    assert plan.count("from_json") == 1
