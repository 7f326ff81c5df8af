"""What the collector accepts, Spark reads: nothing is lost between the two, and nothing changed."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from tests.event_strategies import structs, types, values

from millstream.analyze.records.reader import parse_events
from millstream.pipeline.app import App
from millstream.schema import Array, Map, Primitive, Schema, Struct, Type, to_ddl

COLUMNS = """
    a TINYINT, b SMALLINT, c INT, d BIGINT, e FLOAT, f DOUBLE, g BOOLEAN, h STRING, i BINARY,
    j DATE, k TIMESTAMP, l DECIMAL(38,18), m DECIMAL(5,2) NOT NULL,
    `n.o` STRUCT<`group`: TIMESTAMP, q: STRUCT<r: DATE NOT NULL, s: DECIMAL(5,2)>>,
    `t u` ARRAY<STRUCT<v: TIMESTAMP, w: ARRAY<DECIMAL(5,2)>>>,
    `ü` MAP<STRING, TIMESTAMP>, x MAP<STRING, MAP<STRING, ARRAY<DATE>>>
"""
STREAM = App("test").stream("s", schema=COLUMNS)
UNCHANGED = ("tinyint", "smallint", "int", "bigint", "boolean", "string", "date")


def test_every_event_that_is_accepted_is_read_whole(spark: SparkSession) -> None:
    accepted: list[tuple[bytes, dict[str, Any]]] = []
    validator = STREAM.validator()

    # Draws the events; Spark then reads them in one go.
    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
    @given(values(STREAM.schema))
    def draw(event: dict[str, Any]) -> None:
        raw = json.dumps(event).encode()
        validator.check(raw)
        accepted.append((raw, event))

    draw()
    records = spark.createDataFrame(
        [(raw, number) for number, (raw, _) in enumerate(accepted)], "value binary, offset bigint"
    )
    records = records.coalesce(1).withColumns(
        {
            "partition": F.lit(0),
            "timestamp": F.current_timestamp(),
            "headers": F.expr("cast(array() AS array<struct<key: string, value: binary>>)"),
        }
    )
    row = F.struct(*(F.col(f"`{field.name}`") for field in STREAM.schema.fields))
    read = parse_events(records, STREAM).select(
        F.col("_position.offset").alias("number"),
        F.to_json(row, {"ignoreNullFields": "false"}).alias("row"),
    )
    rows = read.collect()
    assert len(rows) == len(accepted)
    for number, text in rows:
        _assert_same(STREAM.schema, accepted[number][1], json.loads(text), "")


def _assert_same(of: Type, sent: Any, read: Any, path: str) -> None:
    assert (sent is None) == (read is None), f"{path}: {sent!r} was read as {read!r}"
    if sent is None:
        return
    match of:
        case Struct(fields):
            for field in fields:
                inner = f"{path}.{field.name}"
                _assert_same(field.type, sent.get(field.name), read.get(field.name), inner)
        case Array(element):
            for one, other in zip(sent, read, strict=True):
                _assert_same(element, one, other, f"{path}[]")
        case Map(value):
            assert sent.keys() == read.keys()
            for key in sent:
                _assert_same(value, sent[key], read[key], f"{path}[{key!r}]")
        case Primitive(name) if name in UNCHANGED:
            assert sent == read, path


def test_spark_reads_our_ddl(spark: SparkSession) -> None:
    @settings(max_examples=50, deadline=None)
    @given(structs(types))
    def check(schema: Schema) -> None:
        read = StructType.fromDDL(to_ddl(schema))
        assert isinstance(read, StructType)
        assert read.names == [field.name for field in schema.fields]
        assert [not each.nullable for each in read] == [field.required for field in schema.fields]

    check()
