"""The columns of a view's result: their types, the time window, the key's spelling."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType, TimestampType

from millstream.values.view_description import ViewColumn


def columns_of(rows: DataFrame, names: tuple[str, ...]) -> tuple[ViewColumn, ...]:
    """The user's columns with their types."""
    types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    return tuple(ViewColumn(name, types[name]) for name in names)


def window_of(rows: DataFrame, names: tuple[str, ...]) -> str | None:
    """The column that is a time window, or None."""
    for field in rows.schema.fields:
        if (
            field.name in names
            and isinstance(field.dataType, StructType)
            and field.dataType.names == ["start", "end"]
            and all(isinstance(each.dataType, TimestampType) for each in field.dataType.fields)
        ):
            return field.name
    return None
