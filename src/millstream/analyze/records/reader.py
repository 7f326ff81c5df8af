"""Reads Kafka records as typed rows, with hidden columns for facts about each event.

`SELECT *` in a user's query gives the stream's own columns only. A query can still name the hidden
ones (`_id`, `_received_at`, `_position`, `_event_time`, `_watermark`), and `lineage` finds them in
the user's plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from millstream.analyze.spark.catalyst import Attribute, Catalyst, items, named, quoted
from millstream.log.connection import spark_options
from millstream.log.settings import LogSettings
from millstream.pipeline.model import Stream
from millstream.schema import Array, Map, Primitive, Schema, Struct, Type, to_ddl
from millstream.schema.scalars import EARLIEST, LATEST, MILLISECONDS_FROM
from millstream.syntax.duration import milliseconds
from millstream.values import event
from millstream.values.hidden_columns import (
    CLOSED,
    EVENT_TIME,
    ID,
    OF_EVENTS,
    POSITION,
    RECEIVED,
    WATERMARK,
    WEIGHT,
)

# Keys in a column's metadata. Spark copies a column's metadata to the windows made of it.
HIDDEN_KEY = "millstream.hidden"  # it is hidden
TIME_KEY = "millstream.time"  # it holds this kind of time
SHARE_KEY = "millstream.share"  # `shed_ranges` puts the view's share here

TimeDomain = Literal["event", "stream"]


def kafka_options(log: LogSettings) -> dict[str, str]:
    """The options of Spark's Kafka source and sink; without `log.bootstrap`, for planning only."""
    return spark_options(log if log.bootstrap else LogSettings(bootstrap="127.0.0.1:1"))


def read_stream(
    spark: SparkSession, topic: str, options: Mapping[str, str], *, headers: bool = False
) -> DataFrame:
    """A topic's records as a stream, from the earliest on."""
    reader = spark.readStream.format("kafka").options(**options)
    return (
        reader.option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", str(headers).lower())
        # Else Spark would skip deleted records silently. So the query fails, and its next start
        # reports what is gone and goes on after it.
        .option("failOnDataLoss", "true")
        .load()
    )


def parse_events(
    records: DataFrame,
    stream: Stream,
    *,
    slack: timedelta = timedelta(),
    time: TimeDomain = "event",
    weighs: bool = False,
) -> DataFrame:
    """A stream's events: the user's columns and, not selected by `*`, the hidden ones.

    `_id` and `_watermark` exist if the records have headers, which are costly to read. Events
    dated too far in the future are left out. Spark deletes state by its own watermark, which
    follows the stream's `time` and stays `slack` behind the lateness. With `weighs`, each event
    has a weight, and the records must have headers.
    """
    has_headers = "headers" in records.columns
    if weighs:
        records = records.select("*", F.lit(1.0).alias("_share", metadata={SHARE_KEY: True}))
    position = F.struct(F.lit(stream.name).alias("source"), "partition", "offset")
    hidden = [
        hidden_column(position, POSITION),
        hidden_column(F.col("timestamp"), RECEIVED, time="stream"),
    ]
    if has_headers:
        hidden.append(hidden_column(_header(event.ID), ID))
        hidden.append(_header(event.WATERMARK).alias("behind"))
    if weighs:
        hidden.append(hidden_column(_weight(), WEIGHT))
    text, schema = _computed_once(F.col("value")).cast("string"), _with_text_times(stream.schema)
    parsed = records.select(F.from_json(text, to_ddl(schema)).alias("value"), *hidden)
    if has_headers:
        kept = [name for name in parsed.columns if name != "behind"]
        parsed = parsed.select(*kept, *_watermark_columns(stream))
    columns = [
        _convert(F.col("value").getField(field.name), field.type).alias(
            field.name, metadata={TIME_KEY: "event"} if field.name == stream.event_time else {}
        )
        for field in stream.schema.fields
    ]
    event_time = named(stream.event_time) if stream.event_time else F.lit(None)
    others = [named(name) for name in parsed.columns if name != "value"]
    typed = parsed.select(*columns, *others).withColumn(
        EVENT_TIME, hidden_column(event_time.cast("timestamp"), EVENT_TIME, time="event")
    )
    if stream.event_time:
        typed = typed.filter(_is_not_ahead(stream))
    followed = RECEIVED if time == "stream" else stream.event_time
    if followed:
        delay = slack + (stream.lateness if time == "event" else timedelta())
        typed = typed.withWatermark(quoted(followed), f"{milliseconds(delay)} milliseconds")
    return hide(typed, [field.name for field in stream.schema.fields])


def _computed_once(column: Column) -> Column:
    """The column, in a form that makes Spark compute expressions over it only once.

    Spark moves filters towards the source and repeats in them the expressions of the columns that
    they use: it would parse each event's JSON once per filter. It does not move filters past an
    expression that is not deterministic.
    """
    return F.when(F.spark_partition_id() >= 0, column)


def _watermark_columns(stream: Stream) -> list[Column]:
    """The watermark behind which an event came out of order, and the end of closed windows."""
    written = F.col("behind").try_cast("bigint")
    watermark = F.when(written.between(EARLIEST, LATEST), written)
    columns = [hidden_column(_timestamp(watermark), WATERMARK)]
    if stream.event_time:
        closed = watermark - milliseconds(stream.lateness)
        columns.append(hidden_column(_timestamp(closed), CLOSED))
    return columns


def _weight() -> Column:
    """1 / the share of events that the collector and then the view kept.

    Rounded to 1/65,536, so that sums of weights do not depend on the order.
    """
    written = _header(event.SAMPLED).try_cast("double")
    kept = F.when((written > 0) & (written < 1), written).otherwise(F.lit(1.0))
    return F.round(65536.0 / (kept * F.col("_share"))) / 65536.0


def _is_not_ahead(stream: Stream) -> Column:
    """Whether an event's time is at most `ahead` after it was received."""
    latest = F.unix_millis(named(RECEIVED)) + milliseconds(stream.ahead)
    return named(EVENT_TIME).isNull() | (F.unix_millis(named(EVENT_TIME)) <= latest)


def _header(name: str) -> Column:
    # As SQL text: Spark numbers the lambdas of F.filter, but the plan's text must not vary.
    found = F.expr(f"try_element_at(filter(headers, header -> header.key = '{name}'), 1)")
    return found.getField("value").cast("string")


def hide(frame: DataFrame, shown: Iterable[str]) -> DataFrame:
    """The columns `shown`; the hidden ones can still be selected by name, but not by `*`."""
    catalyst = Catalyst.of(frame)
    seen = frame.select(*(named(name) for name in shown))
    plan = catalyst.analysed(seen)
    hidden = [each for each in items(plan.child().output()) if is_hidden(each)]
    # Spark hides a column of a USING join in the same way.
    project = catalyst.module("org.apache.spark.sql.catalyst.plans.logical.Project")
    plan.setTagValue(project.hiddenOutputTag(), catalyst.seq(hidden))
    return seen


def hidden_column(column: Column, name: str, time: TimeDomain | None = None) -> Column:
    """The column under that name, with metadata by which `lineage` recognises it."""
    return column.alias(name, metadata={HIDDEN_KEY: True, **({TIME_KEY: time} if time else {})})


def is_hidden(attribute: Attribute) -> bool:
    """Whether an attribute of a plan is a hidden column, under whatever name."""
    return bool(attribute.metadata().contains(HIDDEN_KEY))


def add_temp_view(frame: DataFrame, name: str, sql: str) -> None:
    """Register the frame under that name, with the hidden columns that the SQL mentions.

    Spark's SQL does not find the hidden columns of a temporary view.
    """
    mentioned = [each for each in OF_EVENTS if re.search(rf"\b{each}\b", sql)]
    frame.select("*", *mentioned).createOrReplaceTempView(quoted(name))


def _with_text_times(schema: Schema) -> Schema:
    """The schema with times as text: Spark's JSON reader takes every number for seconds."""
    return Struct(
        tuple(replace(field, type=_with_text_time(field.type)) for field in schema.fields)
    )


def _with_text_time(of: Type) -> Type:
    match of:
        case Primitive("timestamp"):
            return Primitive("string")
        case Primitive():
            return of
        case Array(element):
            return Array(_with_text_time(element))
        case Map(value):
            return Map(_with_text_time(value))
        case Struct():
            return _with_text_times(of)


def _convert(column: Column, of: Type) -> Column:
    """The parsed value, its times converted from text."""
    if _with_text_time(of) == of:
        return column
    match of:
        case Array(element):
            return F.transform(column, lambda each: _convert(each, element))
        case Map(value):
            return F.transform_values(column, lambda _, each: _convert(each, value))
        case Struct(fields):
            parts = [_convert(column.getField(f.name), f.type).alias(f.name) for f in fields]
            return F.when(column.isNotNull(), F.struct(*parts))
        case _:
            return _parse_time(column)


def _parse_time(text: Column) -> Column:
    number = text.try_cast("bigint")
    counts_milliseconds = (number >= MILLISECONDS_FROM) | (number <= -MILLISECONDS_FROM)
    milliseconds = F.when(counts_milliseconds, number).otherwise(number * 1000)
    return F.when(number.isNotNull(), _timestamp(milliseconds)).otherwise(
        text.try_cast("timestamp")
    )


def _timestamp(milliseconds: Column) -> Column:
    # Events that do not match the schema may be in the log: a number out of range would fail.
    return F.when(milliseconds.between(EARLIEST, LATEST), F.timestamp_millis(milliseconds))
