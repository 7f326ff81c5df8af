"""Encodes result rows as Kafka records with a JSON key and value."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millstream.analyze.spark.catalyst import named, spelled
from millstream.values.hidden_columns import POSITION

# Fixed width, in UTC: times sort as text, and no reader has to guess a zone.
JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'",
    "timeZone": "UTC",
}


def encode(rows: DataFrame, key: tuple[str, ...] | None) -> DataFrame:
    """The rows as (key, value), with their hidden columns inside the value."""
    value = F.to_json(F.struct(*(named(name) for name in rows.columns)), JSON)
    if key is not None:
        record_key = _json_array([*map(named, spelled(key, rows.columns))])
    elif POSITION in rows.columns:
        # Rows of one source partition share a key, so that they stay in order.
        position = F.col(POSITION)
        parts = (position.getField("source"), position.getField("partition").cast("string"))
        record_key = F.concat_ws("/", *parts)
    else:
        record_key = F.lit(None).cast("string")
    return rows.select(record_key.alias("key"), value.alias("value"))


def _json_array(columns: list[Column]) -> Column:
    if not columns:
        return F.lit("[]")
    each = [F.to_json(F.array(column), JSON) for column in columns]
    if len(each) == 1:
        return each[0]
    # Spark's arrays have one type. So each column is an array; these are joined without brackets.
    bare = [F.substring(text, F.lit(2), F.length(text) - 2) for text in each]
    return F.concat(F.lit("["), F.concat_ws(",", *bare), F.lit("]"))
