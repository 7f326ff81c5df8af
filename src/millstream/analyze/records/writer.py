"""Result rows as Kafka records: what a row's key is, and how its value is written."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millstream.analyze.spark.catalyst import named
from millstream.values.hidden_columns import POSITION

# Fixed width, in UTC: times sort as text, and no reader has to guess a zone.
JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'",
    "timeZone": "UTC",
}


def encode(rows: DataFrame, key: tuple[str, ...] | None) -> DataFrame:
    """The rows as (key, value): JSON, with whatever hidden columns they have inside the value."""
    value = F.to_json(F.struct(*(named(name) for name in rows.columns)), JSON)
    if key is not None:
        record_key = _json_array([named(_spelled(name, rows.columns)) for name in key])
    elif POSITION in rows.columns:
        # The rows of one source partition stay in order, because they share a key.
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
    # Columns of several types make no array in Spark: so an array of each, joined without brackets.
    bare = [F.substring(text, F.lit(2), F.length(text) - 2) for text in each]
    return F.concat(F.lit("["), F.concat_ws(",", *bare), F.lit("]"))


def _spelled(name: str, columns: list[str]) -> str:
    """The column as the result spells it: Spark ignores case, and so may the user's key."""
    return next((each for each in columns if each.lower() == name.lower()), name)
