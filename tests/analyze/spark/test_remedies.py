"""Queries that Spark does not stream: the reason in plain words, and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millstream.analyze.planning.planner import Planner
from millstream.errors import PipelineError, PipelineErrors
from millstream.pipeline.load import load
from millstream.settings import Settings

STREAMS = """
app.stream("a", schema="city STRING, n LONG, at TIMESTAMP", event_time="at", lateness="1 minute")
app.stream("b", schema="city STRING, n LONG, at TIMESTAMP", event_time="at", lateness="1 minute")
app.stream("c", schema="city STRING, at TIMESTAMP", event_time="at")
"""
BOUNDED = "b.at BETWEEN a.at AND a.at + INTERVAL 1 HOUR"
# What is wrong, and for SQL and Python each: the view's key, its query, and what to write.
SORTS, LIMITS = "it sorts", "it takes a limited number of rows"
OVER = "row_number() OVER (PARTITION BY city ORDER BY at)"
IN_SQL = {
    SORTS: ("None", "SELECT n FROM a ORDER BY n", "leave ORDER BY and LIMIT out"),
    LIMITS: ("'n'", "SELECT n, count(*) AS k FROM a GROUP BY n LIMIT 3", "leave LIMIT out"),
    "it uses a window function (OVER)": (
        "None",
        f"SELECT city, {OVER} AS r FROM a",
        " max_by(struct(…), at)",
    ),
    "it counts or sums distinct values": (
        "'city'",
        "SELECT city, count(DISTINCT n) AS u FROM a GROUP BY city",
        "approx_count_distinct(column), or count exactly: SELECT",
    ),
    "it groups results that are grouped already": (
        "'n'",
        "SELECT n, count(*) AS k FROM (SELECT city, count(*) AS n FROM a GROUP BY city) GROUP BY n",
        "GROUP BY the same window in both",
    ),
    "it has a stream in a subquery": (
        "None",
        "SELECT n FROM a WHERE city IN (SELECT city FROM b)",
        "write a JOIN",
    ),
    "it asks for the rows of a stream that have no match in another": (
        "None",
        f"SELECT n FROM a LEFT ANTI JOIN b ON a.city = b.city AND {BOUNDED}",
        "write a LEFT JOIN",
    ),
    "it keeps rows that have no match, without a bound": (
        "None",
        "SELECT a.n, b.n AS m FROM a LEFT JOIN b ON a.city = b.city",
        "b.at BETWEEN a.at AND",
    ),
    "it joins rows that have two event times": (
        "None",
        "SELECT x.first_at, x.at FROM (SELECT a.at AS first_at, b.at, b.city FROM a JOIN b"
        f" ON a.city = b.city AND {BOUNDED}) x JOIN c ON x.city = c.city",
        "timestamp_micros(unix_micros(at)) AS first_at",
    ),
}
IN_PYTHON = {
    SORTS: ("None", "a.orderBy('n')", "leave orderBy and limit out"),
    LIMITS: ("'n'", "a.groupBy('n').count().limit(3)", "leave limit out"),
    "it uses a window function (OVER)": (
        "None",
        f"a.select(F.expr('{OVER}').alias('r'))",
        "F.max_by(F.struct(…), 'at')",
    ),
    "it counts or sums distinct values": (
        "'city'",
        "a.groupBy('city').agg(F.countDistinct('n').alias('u'))",
        "F.approx_count_distinct('column')",
    ),
    "it groups results that are grouped already": (
        "'n'",
        "a.groupBy('city').agg(F.sum('n').alias('n')).groupBy('n').count()",
        ".groupBy('window')",
    ),
    "it keeps rows that have no match, without a bound": (
        "None",
        "a.join(b.select('city'), 'city', 'left')",
        "F.expr('b.at BETWEEN",
    ),
}


@pytest.mark.parametrize("reason", IN_SQL)
def test_unsupported_sql_is_refused_with_a_remedy_in_sql(planned: Any, reason: str) -> None:
    key, query, instead = IN_SQL[reason]
    check(planned, f'app.view("v", key={key}, sql="""{query}""")', reason, instead)


@pytest.mark.parametrize("reason", IN_PYTHON)
def test_unsupported_python_is_refused_with_a_remedy_in_python(planned: Any, reason: str) -> None:
    key, query, instead = IN_PYTHON[reason]
    body = f"@app.view(key={key})\ndef v(a: DataFrame, b: DataFrame) -> DataFrame:\n return {query}"
    check(planned, body, reason, instead)


def check(planned: Any, view: str, reason: str, instead: str) -> None:
    with pytest.raises(PipelineError) as caught:
        planned(f"{STREAMS}\n{view}\n")
    assert f"cannot run as a continuous query: {reason}" in caught.value.message
    assert instead in caught.value.remedy


def test_the_remedies_can_be_planned(planned: Any) -> None:
    found = planned(f'''{STREAMS}
app.view("users", key="city", sql="""SELECT city, count(*) AS users
    FROM (SELECT DISTINCT city, n FROM a) GROUP BY city""")
app.view("last", key="city", sql="""SELECT city, max_by(struct(n, at), at) AS last
    FROM a GROUP BY city""")
app.view("unmatched", sql="""SELECT a.n FROM a LEFT JOIN b ON a.city = b.city AND {BOUNDED}
    WHERE b.city IS NULL""")
app.view("three", sql="""SELECT x.first_at, x.at FROM (
    SELECT timestamp_micros(unix_micros(a.at)) AS first_at, b.at, b.city
    FROM a JOIN b ON a.city = b.city AND {BOUNDED}) x JOIN c ON x.city = c.city""")
''')
    assert len(found) == 4


@pytest.mark.parametrize(
    ("sql", "instead"),
    [
        (
            "SELECT city, count(*) AS k FROM a GROUP BY city ORDER BY count(*) DESC, 1 LIMIT 5",
            'app.query("v_sorted", sql="SELECT * FROM v ORDER BY k DESC, city LIMIT :n", n=5)',
        ),
        (
            "SELECT city, count(*) AS k FROM a GROUP BY city LIMIT 3",
            'app.query("v_sorted", sql="SELECT * FROM v ORDER BY … LIMIT :n", n=3)',
        ),
        (
            f"SELECT city, at, {OVER} AS r FROM a",
            'app.query("v_ranked", sql="""SELECT *, ROW_NUMBER() OVER (PARTITION BY city'
            ' ORDER BY "at" NULLS FIRST) AS r FROM v""")',
        ),
    ],
)
def test_sorting_and_ranking_can_be_done_in_a_named_query(
    planned: Any, sql: str, instead: str
) -> None:
    key = "'city'" if "GROUP" in sql else "None"
    with pytest.raises(PipelineError) as caught:
        planned(f'{STREAMS}\napp.view("v", key={key}, sql="{sql}")\n')
    assert instead in caught.value.remedy
    # Without what Spark refuses, the view and the query that was proposed are fine.
    plain = sql.replace(f", {OVER} AS r", "").partition(" ORDER")[0].partition(" LIMIT")[0]
    query = instead.replace("…", "k")
    assert len(planned(f'{STREAMS}\napp.view("v", key={key}, sql="{plain}")\n{query}\n')) == 1


def test_all_mistakes_are_reported_at_once(planned: Any) -> None:
    with pytest.raises(PipelineErrors) as caught:
        planned(f"""{STREAMS}
app.view("fine", sql="SELECT n FROM a")
app.view("sorted", sql="SELECT n FROM a ORDER BY n")
app.view("reader", sql="SELECT n FROM sorted")
app.view("misspelt", sql="SELECT cty FROM a")
""")
    assert [error.message.split("'")[1] for error in caught.value.errors] == ["sorted", "misspelt"]
    assert len(str(caught.value).splitlines()) == 2


def test_errors_in_an_sql_file_name_options_as_in_sql(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "shop.sql"
    head = "CREATE STREAM a (city STRING, n INT);\n"

    def remedy_of(view: str) -> str:
        file.write_text(head + view)
        with pytest.raises(PipelineError) as caught:
            Planner(spark, load(file), Settings()).queries()
        return caught.value.remedy

    grouped = "SELECT city, n, count(*) AS k FROM a GROUP BY city, n;"
    assert remedy_of(f"CREATE VIEW v AS {grouped}") == "add key = ('city', 'n')"
    wrong = remedy_of(f"CREATE VIEW v WITH (key = 'city') AS {grouped}")
    assert wrong == "write key = ('city', 'n')"
    table = f"CREATE VIEW t WITH (key = ('city', 'n')) AS {grouped}\n"
    ordered = f"CREATE VIEW v WITH (key = ('city', 'n')) AS {grouped[:-1]} ORDER BY k LIMIT 9;"
    query = "CREATE QUERY v_sorted (n = 9) AS SELECT * FROM v ORDER BY k LIMIT :n;"
    assert query in remedy_of(ordered)
    assert "reads = (t = 'changes')" in remedy_of(f"{table}CREATE VIEW v AS SELECT k FROM t;")
