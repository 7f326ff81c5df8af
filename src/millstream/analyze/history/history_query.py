"""SQL of any kind over the streams and views as they are in the log."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from typing import Any

import sqlglot
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sqlglot import exp
from sqlglot.errors import SqlglotError

from millstream.analyze.history.history import Past, past_records, take_past
from millstream.analyze.planning.editions import describe_views, topic_of
from millstream.analyze.planning.planner import kafka_options
from millstream.analyze.records.reader import events
from millstream.analyze.records.writer import JSON
from millstream.analyze.spark.catalyst import named, quoted
from millstream.analyze.spark.realtime import condense
from millstream.errors import QueryError
from millstream.log.settings import LogSettings
from millstream.log.topic_names import stream_topic
from millstream.pipeline.app import App
from millstream.syntax.names import suggest
from millstream.values.hidden_columns import OF_EVENTS, STATE
from millstream.values.row_version import CORRECTED, PROVISIONAL, STATES
from millstream.values.view_description import ViewColumn, ViewDescription


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of JSON values, and what they were made from."""

    columns: tuple[ViewColumn, ...]
    rows: list[list[Any]]
    truncated: bool
    elapsed_ms: float


@dataclass(frozen=True, slots=True)
class Asked:
    """A SELECT, and what it reads of the log."""

    sql: str
    streams: tuple[str, ...]
    views: tuple[ViewDescription, ...]
    past: Past


def ask(
    app: App, log: LogSettings, sql: str, since: int | None = None, until: int | None = None
) -> Asked:
    """What a SELECT reads, up to now; QueryError if it is none, or of something else."""
    tables = _tables(sql)
    described = describe_views(app.name, log)
    for name in tables:
        if name not in app.streams and name not in described:
            known = (*app.streams, *described)
            raise QueryError(f"there is no stream or view {name!r}", remedy=suggest(name, known))
    streams = tuple(name for name in tables if name in app.streams)
    views = tuple(described[name] for name in tables if name not in app.streams)
    held = take_past(log, [stream_topic(app.name, name) for name in streams], since, until)
    # A view is what it is by now, whatever part of the streams is asked for.
    shown = take_past(log, [topic_of(app.name, view) for view in views])
    return Asked(sql, streams, views, Past({**held.spans, **shown.spans}))


def answer(spark: SparkSession, app: App, log: LogSettings, asked: Asked, limit: int) -> Answer:
    """The first `limit` rows; QueryError in Spark's words if it refuses. Blocks."""
    started = time.monotonic()
    options = kafka_options(log)
    names = []
    try:
        for name in asked.streams:
            topic = stream_topic(app.name, name)
            read = past_records(spark, topic, options, asked.past.spans[topic], headers=True)
            _name(events(read, app.streams[name]), name, asked.sql)
            names.append(name)
        for view in asked.views:
            topic = topic_of(app.name, view)
            read = past_records(spark, topic, options, asked.past.spans[topic], headers=False)
            _rows(read, view).createOrReplaceTempView(quoted(view.name))
            names.append(view.name)
        frame = spark.sql(asked.sql)
        columns = tuple(ViewColumn(f.name, f.dataType.simpleString()) for f in frame.schema.fields)
        rows = _values(frame, limit + 1)
    except PySparkException as error:
        raise QueryError(f"Spark cannot answer: {condense(str(error))}") from error
    finally:
        for name in names:
            spark.catalog.dropTempView(name)
    elapsed = (time.monotonic() - started) * 1000
    return Answer(columns, rows[:limit], len(rows) > limit, elapsed)


def _tables(sql: str) -> tuple[str, ...]:
    """What the SQL reads, in its order; QueryError unless it is one SELECT."""
    try:
        statements = [each for each in sqlglot.parse(sql, dialect="spark") if each is not None]
    except SqlglotError as error:
        raise QueryError(f"the SQL cannot be read: {str(error).splitlines()[0]}") from None
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise QueryError("history is read with one SELECT", remedy="write SELECT … FROM …")
    own = {cte.alias.lower() for cte in statements[0].find_all(exp.CTE)}
    # Spark ignores case, and ours are all small.
    found = [each.name.lower() for each in statements[0].find_all(exp.Table) if each.name]
    return tuple(dict.fromkeys(name for name in found if name not in own))


def _name(frame: DataFrame, name: str, sql: str) -> None:
    # In SQL, Spark knows no columns but a view's own: the hidden ones that are named are there.
    hidden = [each for each in OF_EVENTS if re.search(rf"\b{each}\b", sql)]
    frame.select("*", *hidden).createOrReplaceTempView(quoted(name))


def _rows(records: DataFrame, view: ViewDescription) -> DataFrame:
    """A table's rows as they are at the end, or all rows of a view without key."""
    if view.key is not None:
        # One partition holds all records of a key, so the newest one has the highest offset. After
        # a crash rows are repeated, the older ones first: the highest number is the newest.
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
    # As servers have it: whatever follows a final row is a correction, whether it says so or not.
    unsaid = F.when(F.col("stated") > 0, STATES[CORRECTED]).otherwise(STATES[PROVISIONAL])
    rows = records.filter("value IS NOT NULL").select(parsed, unsaid.alias("unsaid"))
    return rows.select("row.*", "unsaid").select(
        *(
            F.coalesce(STATE, "unsaid").alias(STATE) if column.name == STATE else named(column.name)
            for column in view.shown_columns
        )
    )


def _values(frame: DataFrame, limit: int) -> list[list[Any]]:
    """The rows as JSON values; two columns may have one name."""
    numbered = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
    whole = F.to_json(F.struct(*map(named, numbered.columns)), JSON).alias("row")
    found = numbered.limit(limit).select(whole).collect()
    return [list(json.loads(row["row"]).values()) for row in found]
