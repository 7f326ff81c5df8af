"""Answers SQL queries over the streams and views in the log, with Spark."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import sqlglot
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sqlglot import exp
from sqlglot.errors import SqlglotError

from millstream.analyze.history.history import LogRange, find_log_range, read_batch
from millstream.analyze.planning.editions import describe_views, topic_of
from millstream.analyze.records.reader import add_temp_view, kafka_options, parse_events
from millstream.analyze.records.writer import JSON
from millstream.analyze.spark.catalyst import named, quoted
from millstream.analyze.spark.realtime import condense
from millstream.errors import QueryError
from millstream.log.settings import LogSettings
from millstream.log.topic_names import stream_topic
from millstream.pipeline.app import App
from millstream.syntax.names import suggest
from millstream.values.hidden_columns import STATE
from millstream.values.row_version import CORRECTED, PROVISIONAL, STATES
from millstream.values.view_description import ViewColumn, ViewDescription


@dataclass(frozen=True, slots=True)
class HistoryResult:
    """Rows of JSON values."""

    columns: tuple[ViewColumn, ...]
    rows: list[list[Any]]
    truncated: bool
    elapsed_ms: float


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """A SELECT, and the range of the log that it reads."""

    sql: str
    streams: tuple[str, ...]
    views: tuple[ViewDescription, ...]
    log_range: LogRange


def prepare_query(
    app: App, log: LogSettings, sql: str, since: int | None = None, until: int | None = None
) -> HistoryQuery:
    """A SELECT over the log up to now; QueryError if it is another statement or table."""
    tables = _tables(sql)
    described = describe_views(app.name, log)
    for name in tables:
        if name not in app.streams and name not in described:
            known = (*app.streams, *described)
            raise QueryError(f"there is no stream or view {name!r}", remedy=suggest(name, known))
    streams = tuple(name for name in tables if name in app.streams)
    views = tuple(described[name] for name in tables if name not in app.streams)
    held = find_log_range(log, [stream_topic(app.name, name) for name in streams], since, until)
    # `since` and `until` select events of streams; of a view, the current rows are read.
    shown = find_log_range(log, [topic_of(app.name, view) for view in views])
    return HistoryQuery(sql, streams, views, LogRange({**held.offsets, **shown.offsets}))


def run_query(
    spark: SparkSession, app: App, log: LogSettings, query: HistoryQuery, limit: int
) -> HistoryResult:
    """The first `limit` rows; QueryError, in Spark's words, if Spark cannot run it. Blocks."""
    started = time.monotonic()
    options = kafka_options(log)
    names = []
    try:
        for name in query.streams:
            topic = stream_topic(app.name, name)
            offsets = query.log_range.offsets[topic]
            read = read_batch(spark, topic, options, offsets, headers=True)
            add_temp_view(parse_events(read, app.streams[name]), name, query.sql)
            names.append(name)
        for view in query.views:
            topic = topic_of(app.name, view)
            offsets = query.log_range.offsets[topic]
            read = read_batch(spark, topic, options, offsets, headers=False)
            _rows(read, view).createOrReplaceTempView(quoted(view.name))
            names.append(view.name)
        frame = spark.sql(query.sql)
        columns = tuple(ViewColumn(f.name, f.dataType.simpleString()) for f in frame.schema.fields)
        rows = _values(frame, limit + 1)
    except PySparkException as error:
        raise QueryError(f"Spark cannot answer: {condense(str(error))}") from error
    finally:
        for name in names:
            spark.catalog.dropTempView(name)
    elapsed = (time.monotonic() - started) * 1000
    return HistoryResult(columns, rows[:limit], len(rows) > limit, elapsed)


def _tables(sql: str) -> tuple[str, ...]:
    """The tables that the SQL reads, in its order; QueryError unless it is one SELECT."""
    try:
        statements = [each for each in sqlglot.parse(sql, dialect="spark") if each is not None]
    except SqlglotError as error:
        raise QueryError(f"the SQL cannot be read: {str(error).splitlines()[0]}") from None
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise QueryError("history is read with one SELECT", remedy="write SELECT … FROM …")
    own = {cte.alias.lower() for cte in statements[0].find_all(exp.CTE)}
    # Spark ignores case; names of streams and views are lower case.
    found = [each.name.lower() for each in statements[0].find_all(exp.Table) if each.name]
    return tuple(dict.fromkeys(name for name in found if name not in own))


def _rows(records: DataFrame, view: ViewDescription) -> DataFrame:
    """The newest row per key, or all rows of a view without a key."""
    if view.key is not None:
        # All records of a key are in one partition. After a crash older rows may be repeated: the
        # newest row has the highest revision, and then the highest offset.
        state = F.get_json_object(F.col("value").cast("string"), f"$.{STATE}")
        number = F.coalesce(
            F.get_json_object(F.col("value").cast("string"), "$._revision").cast("bigint"),
            F.lit(0).cast("bigint"),
        )
        newest = records.groupBy("key").agg(
            F.max_by("value", F.struct("offset")).alias("last"),
            F.max_by("value", F.struct(number, "offset")).alias("value"),
            F.count(state).alias("stated"),
        )
        records = newest.filter("last IS NOT NULL")
    types = ", ".join(f"{quoted(column.name)} {column.type}" for column in view.shown_columns)
    parsed = F.from_json(F.col("value").cast("string"), types).alias("row")
    if not view.has_states:
        return records.filter("value IS NOT NULL").select(parsed).select("row.*")
    # As in servers: each row after a final one is a correction, even without a state.
    implied = F.when(F.col("stated") > 0, STATES[CORRECTED]).otherwise(STATES[PROVISIONAL])
    rows = records.filter("value IS NOT NULL").select(parsed, implied.alias("implied"))
    return rows.select("row.*", "implied").select(
        *(
            F.coalesce(STATE, "implied").alias(STATE)
            if column.name == STATE
            else named(column.name)
            for column in view.shown_columns
        )
    )


def _values(frame: DataFrame, limit: int) -> list[list[Any]]:
    """The rows as JSON values; two columns may have one name."""
    numbered = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
    whole = F.to_json(F.struct(*map(named, numbered.columns)), JSON).alias("row")
    found = numbered.limit(limit).select(whole).collect()
    return [list(json.loads(row["row"]).values()) for row in found]
