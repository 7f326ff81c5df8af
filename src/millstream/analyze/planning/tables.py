"""Views as inputs of other views: as a stream of their changes, or as reference data."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from millstream.analyze.planning.planned_query import PlannedQuery
from millstream.analyze.records.reader import hidden_column, hide
from millstream.analyze.spark.catalyst import named
from millstream.values.hidden_columns import EVENT_TIME, ID, POSITION, RECEIVED, REVISION


def changes(records: DataFrame, of: PlannedQuery) -> DataFrame:
    """Every version of a grouped view's rows, once: without repeats after crashes, or deletes."""
    columns = [column.name for column in of.plan.columns]
    key = _unused_name("key", columns)
    present = records.filter("value IS NOT NULL").select(
        "key", "partition", "offset", _parsed(of).alias("row")
    )
    row = F.col("row")
    position = F.struct(F.lit(of.plan.name).alias("source"), "partition", "offset")
    rows = present.select(
        *(row.getField(name).alias(name) for name in columns),
        # Renamed only if necessary: another name would change the view's generation.
        "key" if key == "key" else F.col("key").alias(key),
        row.getField(REVISION).alias(REVISION),
        hidden_column(F.lit(None).cast("string"), ID),
        hidden_column(position, POSITION),
        hidden_column(row.getField(RECEIVED), RECEIVED),
        hidden_column(row.getField(EVENT_TIME), EVENT_TIME),
    )
    return hide(rows.dropDuplicates([key, REVISION]), columns)


def reference(
    spark: SparkSession, of: PlannedQuery, topic: str, options: Mapping[str, str]
) -> DataFrame:
    """A view's newest rows when a batch starts."""
    reader = spark.read.format("kafka").options(**options).option("subscribe", topic)
    records = reader.option("startingOffsets", "earliest").option("failOnDataLoss", "false").load()
    # One partition holds all records of a key, so the newest one has the highest offset.
    newest = records.groupBy("key").agg(F.max_by("value", "offset").alias("value"))
    keys = list(of.plan.key or ())
    rows = newest.filter("value IS NOT NULL").select(_parsed(of).alias("row")).select("row.*")
    columns = [column.name for column in of.plan.columns]
    # They are unique by key already. This lets Spark know that a join finds at most one row.
    return F.broadcast(rows.select(*map(named, columns)).dropDuplicates(keys or None))


def _unused_name(name: str, columns: list[str]) -> str:
    """The name, with underscores before it until no column has it."""
    taken = {column.lower() for column in columns}
    while name in taken:
        name = f"_{name}"
    return name


def _parsed(of: PlannedQuery) -> Column:
    return F.from_json(F.col("value").cast("string"), of.rows.schema)
