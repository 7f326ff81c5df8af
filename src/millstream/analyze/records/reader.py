"""Kafka's records as typed rows, with what is known of each event in hidden columns.

A user's query sees its stream's columns and no others: `SELECT *` gives them alone. The hidden
ones can be named all the same (`_id`, `_received_at`, `_position`, `_event_time`, `_watermark`),
and `lineage` finds them beneath whatever the user built.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from millstream.analyze.spark.catalyst import Catalyst, items, named, quoted
from millstream.pipeline.model import Stream
from millstream.schema import Array, Map, Primitive, Schema, Struct, Type, to_ddl
from millstream.schema.scalars import EARLIEST, LATEST, MILLISECONDS_FROM
from millstream.syntax.duration import milliseconds
from millstream.values import event
from millstream.values.hidden_columns import (
    CLOSED,
    EVENT_TIME,
    ID,
    POSITION,
    RECEIVED,
    WATERMARK,
    WEIGHT,
)

SHARE = "millstream.share"  # in a column's metadata: what `shedding` puts the view's share into
# In a column's metadata: that it is hidden, and which time it tells. Spark hands a column's
# metadata on to the windows that are made of it.
MARK, TIME = "millstream.hidden", "millstream.time"

Time = Literal["event", "stream"]


def records(
    spark: SparkSession, topic: str, options: Mapping[str, str], *, headers: bool = False
) -> DataFrame:
    """A topic's records from the earliest on, as they come; with their headers if asked for."""
    reader = spark.readStream.format("kafka").options(**options)
    return (
        reader.option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", str(headers).lower())
        # Spark would step over what retention has taken without a word. So the query ends, and
        # its next start, a moment later, says what is gone and goes on behind it.
        .option("failOnDataLoss", "true")
        .load()
    )


def events(
    records: DataFrame,
    stream: Stream,
    *,
    slack: timedelta = timedelta(),
    time: Time = "event",
    weighs: bool = False,
) -> DataFrame:
    """A stream's events: the user's columns, and beneath them the hidden ones.

    `_id` and `_watermark` are among these if the records have headers, which are costly to read.
    An event that is dated too far in the future is left out. Spark's own watermark, by which it
    ends its state, follows the stream's `time`, and stays `slack` behind the lateness. If it
    `weighs`, each event has a weight, for which records must have headers.
    """
    headers = "headers" in records.columns
    if weighs:
        records = records.select("*", F.lit(1.0).alias("_share", metadata={SHARE: True}))
    parsed = records.select(
        F.from_json(_once(F.col("value")).cast("string"), to_ddl(_as_read(stream.schema))).alias(
            "value"
        ),
        mark(F.struct(F.lit(stream.name).alias("source"), "partition", "offset"), POSITION),
        mark(F.col("timestamp"), RECEIVED, time="stream"),
        *(
            [mark(_header(event.ID), ID), _header(event.WATERMARK).alias("behind")]
            if headers
            else ()
        ),
        *([mark(_weight(), WEIGHT)] if weighs else ()),
    )
    if headers:
        parsed = parsed.select(*(c for c in parsed.columns if c != "behind"), *_behind(stream))
    columns = [
        _convert(F.col("value").getField(field.name), field.type).alias(
            field.name, metadata={TIME: "event"} if field.name == stream.event_time else {}
        )
        for field in stream.schema.fields
    ]
    event_time = named(stream.event_time) if stream.event_time else F.lit(None)
    hidden = [named(name) for name in parsed.columns if name != "value"]
    typed = parsed.select(*columns, *hidden).withColumn(
        EVENT_TIME, mark(event_time.cast("timestamp"), EVENT_TIME, time="event")
    )
    if stream.event_time:
        typed = typed.filter(_in_time(stream))
    followed = RECEIVED if time == "stream" else stream.event_time
    if followed:
        delay = slack + (stream.lateness if time == "event" else timedelta())
        typed = typed.withWatermark(quoted(followed), f"{milliseconds(delay)} milliseconds")
    return hide(typed, [field.name for field in stream.schema.fields])


def _once(column: Column) -> Column:
    """The column, such that Spark computes only once what is made of it.

    It moves filters towards the source, and puts the expressions of the columns that they ask for
    in their places: the JSON of each event would be parsed anew for each of them. Nothing is moved
    past an expression that might give another value the next time.
    """
    return F.when(F.spark_partition_id() >= 0, column)


def _behind(stream: Stream) -> list[Column]:
    """The watermark that an event came behind, if it did, and until when all is closed to it."""
    written = F.col("behind").try_cast("bigint")
    watermark = F.when(written.between(EARLIEST, LATEST), written)
    behind = [mark(_moment(watermark), WATERMARK)]
    if stream.event_time:
        closed = watermark - milliseconds(stream.lateness)
        behind.append(mark(_moment(closed), CLOSED))
    return behind


def _weight() -> Column:
    """1 over the share of events that was kept, by the collector and then by the view.

    In 65,536ths, so that weights add up to the same sum in whatever order.
    """
    written = _header(event.SAMPLED).try_cast("double")
    kept = F.when((written > 0) & (written < 1), written).otherwise(F.lit(1.0))
    return F.round(65536.0 / (kept * F.col("_share"))) / 65536.0


def _in_time(stream: Stream) -> Column:
    """Whether an event is dated no later than a clock that is right within reason can date it."""
    latest = F.unix_millis(named(RECEIVED)) + milliseconds(stream.ahead)
    return named(EVENT_TIME).isNull() | (F.unix_millis(named(EVENT_TIME)) <= latest)


def _header(name: str) -> Column:
    # As text: Spark numbers the lambdas of F.filter, and a plan must look the same in each run.
    found = F.expr(f"try_element_at(filter(headers, header -> header.key = '{name}'), 1)")
    return found.getField("value").cast("string")


def hide(frame: DataFrame, shown: Iterable[str]) -> DataFrame:
    """The columns `shown`, with the hidden ones still to be had by name, though not by `*`."""
    catalyst = Catalyst.of(frame)
    seen = frame.select(*(named(name) for name in shown))
    plan = catalyst.analysed(seen)
    hidden = [each for each in items(plan.child().output()) if each.metadata().contains(MARK)]
    # Spark keeps the columns that a USING join hides in the same way.
    project = catalyst.module("org.apache.spark.sql.catalyst.plans.logical.Project")
    plan.setTagValue(project.hiddenOutputTag(), catalyst.seq(hidden))
    return seen


def mark(column: Column, name: str, time: Time | None = None) -> Column:
    """A hidden column: `lineage` knows it by its mark."""
    return column.alias(name, metadata={MARK: True, **({TIME: time} if time else {})})


def _as_read(schema: Schema) -> Schema:
    """The schema for Spark's JSON reader, which takes any number for seconds: times as text."""
    return Struct(tuple(replace(field, type=_read_as(field.type)) for field in schema.fields))


def _read_as(of: Type) -> Type:
    match of:
        case Primitive("timestamp"):
            return Primitive("string")
        case Primitive():
            return of
        case Array(element):
            return Array(_read_as(element))
        case Map(value):
            return Map(_read_as(value))
        case Struct():
            return _as_read(of)


def _convert(column: Column, of: Type) -> Column:
    """The value that was read, with its times made times."""
    if _read_as(of) == of:
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
            return _time(column)


def _time(text: Column) -> Column:
    number = text.try_cast("bigint")
    counts_milliseconds = (number >= MILLISECONDS_FROM) | (number <= -MILLISECONDS_FROM)
    milliseconds = F.when(counts_milliseconds, number).otherwise(number * 1000)
    return F.when(number.isNotNull(), _moment(milliseconds)).otherwise(text.try_cast("timestamp"))


def _moment(milliseconds: Column) -> Column:
    # A stream may keep events that do not fit: a count that is no time would end the query.
    return F.when(milliseconds.between(EARLIEST, LATEST), F.timestamp_millis(milliseconds))
