"""Result rows as Kafka records."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession

from millstream.analyze.records.writer import encode


def one(spark: SparkSession, sql: str, key: tuple[str, ...] | None) -> tuple[Any, Any]:
    row = encode(spark.sql(sql), key).collect()[0]
    return row["key"], json.loads(row["value"])


def test_a_table_s_key_is_a_json_array_of_any_types(spark: SparkSession) -> None:
    key, value = one(
        spark,
        """SELECT 'a"b' AS text, 1L AS n, true AS yes, NULL AS nothing, 1.5D AS d,
           named_struct('start', TIMESTAMP '2026-11-16 10:00:00', 'end', NULL) AS w""",
        ("w", "text", "n", "yes", "nothing", "d"),
    )
    window = {"start": "2026-11-16T10:00:00.000000Z", "end": None}
    assert json.loads(key) == [window, 'a"b', 1, True, None, 1.5]
    assert value == {"text": 'a"b', "n": 1, "yes": True, "nothing": None, "d": 1.5, "w": window}


def test_a_key_ignores_case_as_spark_does(spark: SparkSession) -> None:
    assert one(spark, "SELECT 'Bern' AS City", ("city",))[0] == '["Bern"]'


def test_a_table_of_one_row_has_an_empty_key(spark: SparkSession) -> None:
    assert one(spark, "SELECT 1 AS n", ())[0] == "[]"


def test_the_rows_of_one_source_partition_share_a_key(spark: SparkSession) -> None:
    sql = """SELECT 1 AS n,
        named_struct('source', 's', 'partition', 2, 'offset', 3L, 'row', 0L) AS _position"""
    key, value = one(spark, sql, None)
    assert key == "s/2"
    assert value["_position"] == {"source": "s", "partition": 2, "offset": 3, "row": 0}


def test_rows_without_lineage_have_no_key(spark: SparkSession) -> None:
    assert one(spark, "SELECT 1 AS n", None) == (None, {"n": 1})
