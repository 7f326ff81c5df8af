"""The lineage of a view's rows, for many kinds of queries."""

from __future__ import annotations

import re
from typing import Any

import pytest

from millstream.testing import Logged, run

STREAMS = """
app.stream("a", schema="city STRING, n LONG, at TIMESTAMP, tags ARRAY<STRING>, m MAP<STRING, INT>, "
           "nested ARRAY<ARRAY<STRING>>, parts ARRAY<STRUCT<x: INT, y: INT>>",
           event_time="at", lateness="10 minutes")
app.stream("b", schema="city STRING, n LONG, at TIMESTAMP, tags ARRAY<STRING>, m MAP<STRING, INT>, "
           "nested ARRAY<ARRAY<STRING>>, parts ARRAY<STRUCT<x: INT, y: INT>>")
"""

POSITION = {
    "a projection": "a.select('city')",
    "a filter": "a.filter('n > 1')",
    "a star": "a.select('*')",
    "columns added, dropped and renamed": "a.withColumn('x', F.col('n') + 1).drop('n')"
    ".withColumnRenamed('x', 'y')",
    "an alias and a hint": "a.alias('q').hint('x').select('q.city')",
    "explode": "a.select('city', F.explode('tags').alias('tag'))",
    "explode of a map": "a.select('city', F.explode('m'))",
    "explode_outer": "a.select('city', F.explode_outer('tags').alias('tag'))",
    "posexplode": "a.select('city', F.posexplode('tags'))",
    "an explode in an explode": "a.select(F.explode('nested').alias('one'))"
    ".select(F.explode('one').alias('two'))",
    "LATERAL VIEW": "a.sparkSession.sql("
    "'SELECT city, tag FROM {a} LATERAL VIEW explode(tags) AS tag', a=a)",
    "a pipe": "a.sparkSession.sql('FROM {a} |> WHERE n > 1 |> SELECT city', a=a)",
    "dropDuplicates": "a.dropDuplicates(['city'])",
    "dropDuplicates by all": "a.select('city', 'n').dropDuplicates()",
    "distinct": "a.select('city').distinct()",
    "a union of two streams": "a.union(b)",
    "a union by name": "a.select('city', 'n').unionByName(b.select('n', 'city'))",
    "a window without grouping": "a.select('city', F.window('at', '1 hour'))",
    "a sliding window without grouping": "a.select('city', F.window('at', '1 hour', '20 minutes'))",
    "a semi-join with reference data": "a.join(F.broadcast(static), 'city', 'left_semi')",
    "a join with reference data that is unique": "a.join("
    "F.broadcast(static.dropDuplicates(['city'])), 'city', 'left')",
    "a join with grouped reference data": "a.join("
    "F.broadcast(static.groupBy('city').agg(F.max('x').alias('x'))), 'city')",
    "hidden columns by name": "a.select('city', F.col('_received_at').alias('seen'), "
    "F.col('_id').alias('id'), F.col('_position.offset').alias('o'), '_event_time')",
}
NONE = {
    "a join with reference data that may repeat": (
        "a.join(F.broadcast(static), 'city')",
        "several rows may fit one event",
    ),
    "LATERAL": (
        "a.sparkSession.sql("
        "'SELECT city, tag FROM {a}, LATERAL (SELECT explode(tags) AS tag)', a=a)",
        "LATERAL",
    ),
    "inline": ("a.select('city', F.inline('parts'))", r"inline\(\)"),
    "stack": ("a.select('city', F.expr('stack(2, n, n + 1)'))", r"stack\(\)"),
}
REVISION = {
    "groupBy": ("['city']", "a.groupBy('city').count()"),
    "a window": ("['window', 'city']", "a.groupBy(F.window('at', '1 hour'), 'city').count()"),
    "a sliding window": (
        "['window']",
        "a.groupBy(F.window('at', '1 hour', '10 minutes')).agg(F.sum('n').alias('n'))",
    ),
    "a window's start alone": (
        "['minute']",
        "a.groupBy(F.window('at', '1 minute')).count()"
        ".select(F.col('window.start').alias('minute'), 'count')",
    ),
    "a filter on the groups": ("['city']", "a.groupBy('city').count().filter('count > 1')"),
    "an explode below": (
        "['tag']",
        "a.select(F.explode('tags').alias('tag')).groupBy('tag').count()",
    ),
    "stack below": ("['col0']", "a.select(F.expr('stack(2, n, n + 1)')).groupBy('col0').count()"),
    "a join below": ("['x']", "a.join(F.broadcast(static), 'city').groupBy('x').count()"),
    "a union below": ("['city']", "a.union(b).groupBy('city').count()"),
    "a renamed key": ("['place']", "a.groupBy(F.col('city').alias('place')).count()"),
    "an expression as the key": ("['c']", "a.groupBy(F.upper('city').alias('c')).count()"),
    "no groups": ("['scope']", "a.agg(F.count('*').alias('n')).withColumn('scope', F.lit('all'))"),
    "grouping sets": ("['city', 'n']", "a.rollup('city', 'n').count()"),
    "duplicates dropped below": (
        "['city']",
        "a.dropDuplicates(['city', 'n']).groupBy('city').count()",
    ),
}


def view(query: str, options: str = "") -> str:
    return f"""{STREAMS}
@app.view({options})
def v(a: DataFrame, b: DataFrame) -> DataFrame:
    static = a.sparkSession.createDataFrame([("x", 1)], "city STRING, x INT")
    return {query}
"""


@pytest.mark.parametrize("query", POSITION.values(), ids=POSITION.keys())
def test_a_row_of_one_event_keeps_its_position(planned: Any, query: str) -> None:
    found = planned(view(query))["v"]
    assert (found.plan.lineage, found.plan.lineage_reason) == ("position", "")
    assert found.rows.columns[-3:] == ["_position", "_received_at", "_event_time"]
    assert found.rows.schema["_position"].dataType.simpleString() == (
        "struct<source:string,partition:int,offset:bigint,row:bigint>"
    )
    assert not [c.name for c in found.plan.columns if c.name.startswith("_")]


@pytest.mark.parametrize(("query", "why"), NONE.values(), ids=NONE.keys())
def test_a_plan_that_cannot_keep_positions_says_so(planned: Any, query: str, why: str) -> None:
    found = planned(view(query))["v"].plan
    assert found.lineage == "none"
    assert re.search(why, found.guarantee)


@pytest.mark.parametrize(("key", "query"), REVISION.values(), ids=REVISION.keys())
def test_groups_get_a_revision(planned: Any, key: str, query: str) -> None:
    found = planned(view(query, f"key={key}"))["v"]
    assert found.plan.lineage == "revision"
    assert found.rows.columns[-3:] == ["_revision", "_received_at", "_event_time"]
    assert found.rows.schema["_revision"].dataType.simpleString() == "bigint"


@pytest.mark.parametrize(
    "rows", ["FROM a |> WHERE n > 0", "SELECT * FROM a, LATERAL (SELECT explode(array(1)) AS one)"]
)
def test_late_events_are_left_out_after_a_pipe_and_a_lateral_subquery(
    pipeline: Any, planned: Any, rows: str
) -> None:
    sql = f"SELECT window(at, '1 minute') AS minute, count(*) AS n FROM ({rows}) GROUP BY 1"
    body = f'{STREAMS}\napp.view("v", key=["minute"], sql="{sql}")'
    at = "2026-11-16T10:00:30Z"
    late = Logged({"n": 2, "at": at}, watermark="2026-11-16T10:30:00Z")
    found = run(pipeline(body), {"a": [{"n": 1, "at": at}, late]})
    assert [row["n"] for row in found["v"]] == [1]
    assert planned(body)["v"].plan.window_spec.text == "tumbling, 1 minute, by event time of a"
