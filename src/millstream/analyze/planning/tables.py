"""Tables that other views read: as the stream of their changes, or as data to look things up in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from millstream.analyze.records.reader import hide, mark
from millstream.analyze.spark.catalyst import named
from millstream.values.hidden_columns import EVENT_TIME, ID, POSITION, RECEIVED, REVISION

if TYPE_CHECKING:
    from millstream.analyze.planning.planner import Query


def changes(records: DataFrame, of: Query) -> DataFrame:
    """Each row that a grouped view ever had, once: without a crash's repeats and rows' ends."""
    columns = [column.name for column in of.plan.columns]
    key = _unlike("key", columns)
    rows = _rows(records, of, key).dropDuplicates([key, REVISION])
    return hide(rows, columns)


def reference(spark: SparkSession, of: Query, topic: str, options: Mapping[str, str]) -> DataFrame:
    """A table's rows as they are when a batch starts."""
    reader = spark.read.format("kafka").options(**options).option("subscribe", topic)
    records = reader.option("startingOffsets", "earliest").option("failOnDataLoss", "false").load()
    # One partition holds all records of a key, so the newest one has the highest offset.
    newest = records.groupBy("key").agg(F.max_by("value", "offset").alias("value"))
    keys = list(of.plan.key or ())
    rows = newest.filter("value IS NOT NULL").select(_parsed(of).alias("row")).select("row.*")
    columns = [column.name for column in of.plan.columns]
    # By key already; said so that Spark knows that a look-up finds one row at most.
    return F.broadcast(rows.select(*map(named, columns)).dropDuplicates(keys or None))


def _unlike(name: str, columns: list[str]) -> str:
    """The name, or one like it that no column has."""
    taken = {column.lower() for column in columns}
    while name in taken:
        name = f"_{name}"
    return name


def _rows(records: DataFrame, of: Query, key: str) -> DataFrame:
    present = records.filter("value IS NOT NULL").select(
        "key", "partition", "offset", _parsed(of).alias("row")
    )
    position = F.struct(F.lit(of.plan.name).alias("source"), "partition", "offset")
    return present.select(
        *(F.col("row").getField(column.name).alias(column.name) for column in of.plan.columns),
        # Renamed only where it must be: another name is another query, which starts from scratch.
        "key" if key == "key" else F.col("key").alias(key),
        F.col("row").getField(REVISION).alias(REVISION),
        mark(F.lit(None).cast("string"), ID),
        mark(position, POSITION),
        mark(F.col("row").getField(RECEIVED), RECEIVED),
        mark(F.col("row").getField(EVENT_TIME), EVENT_TIME),
    )


def _parsed(of: Query) -> Column:
    return F.from_json(F.col("value").cast("string"), of.rows.schema)
