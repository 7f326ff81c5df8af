"""Parsing a view's SQL without running it."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import PipelineError
from millstream.pipeline.view_sql import parse_select, to_spark_sql
from millstream.pipeline.windows import marker


@pytest.mark.parametrize(
    ("sql", "inputs"),
    [
        ("SELECT * FROM rsvps", ["rsvps"]),
        ("SELECT * FROM Rsvps r JOIN `cities` AS c ON r.x = c.x", ["rsvps", "cities"]),
        ("WITH c AS (SELECT * FROM a) SELECT * FROM c JOIN b", ["a", "b"]),
        ("WITH rsvps AS (SELECT * FROM rsvps) SELECT * FROM rsvps", ["rsvps"]),
        ("SELECT x FROM (SELECT x FROM a) z", ["a"]),
        ("SELECT x FROM a WHERE y IN (SELECT y FROM b)", ["a", "b"]),
        ("SELECT 1 AS x FROM a UNION ALL SELECT 2 FROM b", ["a", "b"]),
        ("SELECT t FROM a LATERAL VIEW explode(ts) x AS t", ["a"]),
        ("SELECT window, n FROM a GROUP BY window(at, '1 hour', '10 minutes')", ["a"]),
        ("SELECT window.start FROM a GROUP BY ALL", ["a"]),
        ("FROM a SELECT x", ["a"]),
    ],
)
def test_the_inputs_are_the_tables_that_the_sql_reads_but_does_not_define(
    sql: str, inputs: list[str]
) -> None:
    assert sorted(parse_select(sql).inputs) == sorted(inputs)


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT a, b AS c, group.city, `x y` FROM r", ("a", "c", "city", "x y")),
        ("SELECT window(at, '1 hour'), count(*) n FROM r GROUP BY 1", ("window", "n")),
        ("SELECT count(*), a + 1, d FROM r GROUP BY d", ("d",)),
        ("SELECT *, a FROM r", None),
        ("SELECT r.* FROM r", None),
        ("SELECT a FROM r UNION ALL SELECT b FROM s", ("a",)),
    ],
)
def test_the_result_columns_are_known_unless_there_is_a_star(
    sql: str, columns: tuple[str, ...] | None
) -> None:
    assert parse_select(sql).columns == columns


@pytest.mark.parametrize(
    ("sql", "aggregates"),
    [
        ("SELECT city, count(*) AS n FROM r GROUP BY city", True),
        ("SELECT max(x) AS x FROM r", True),
        ("SELECT DISTINCT city FROM r", True),
        ("SELECT n FROM (SELECT count(*) AS n FROM r)", True),
        ("SELECT count_window(3) AS w, count(*) AS n FROM r GROUP BY count_window(3)", False),
        ("SELECT city, upper(name) AS x FROM r WHERE n > 3", False),
        ("SELECT explode(topics) AS topic FROM r", False),
    ],
)
def test_an_aggregation_is_found_anywhere_in_the_query(sql: str, aggregates: bool) -> None:
    assert parse_select(sql).aggregates is aggregates


def test_the_grouping_is_the_suggested_key() -> None:
    sql = "SELECT window(at, '1 hour') AS hour, city, count(*) AS n FROM r GROUP BY 1, 2"
    assert parse_select(sql).grouping == ("hour", "city")


@pytest.mark.parametrize(
    ("sql", "line", "says"),
    [
        ("", 0, "the sql is empty"),
        ("SELECT x\nFRM rsvps", 2, "cannot be read at 'FRM'; did you mean FROM?"),
        ("SELEC x FROM rsvps", 1, "did you mean SELECT?"),
        ("SELECT x\nFROM rsvps\nWHER x > 1", 3, "did you mean WHERE?"),
        ("SELECT count(*\nFROM rsvps", 2, "cannot be read at 'FROM'; ')' is missing there"),
        ("SELECT a,\n b c d\nFROM r", 2, "cannot be read at 'd'"),
        ("SELECT\n'abc FROM r", 2, "a quote or comment that is not closed"),
        ("SELECT 1 AS x", 0, "reads no stream and no view"),
        ("SELECT a FROM r;\nSELECT b FROM r", 2, "more than one statement"),
        ("\nINSERT INTO r SELECT 1", 2, "not a SELECT but INSERT"),
        ("DROP TABLE r", 1, "not a SELECT but DROP"),
        ("CREATE VIEW x AS SELECT a FROM r", 1, "not a SELECT but CREATE"),
        ("SELECT " + "(" * 5000, 0, "nested too deep"),
        ("VALUES (1)", 1, "not a SELECT but VALUES"),
        ("EXPLAIN SELECT a FROM r", 1, "not a SELECT but EXPLAIN"),
        ("WITH x AS (SELECT 1) INSERT INTO r SELECT 1", 0, "the sql is not a SELECT"),
        ("SELECT a\nFROM other.rsvps", 2, "write rsvps if that is one of them"),
        ("SELECT a FROM parquet.`/etc/x`", 1, "reads only the app's streams and views"),
    ],
)
def test_sql_that_is_not_one_select_is_refused_with_the_line(
    sql: str, line: int, says: str
) -> None:
    with pytest.raises(PipelineError) as caught:
        parse_select(sql)
    assert says in str(caught.value)
    assert caught.value.line == line


WORDS = [
    *("SELECT", "FROM", "WHERE", "GROUP", "BY", "WITH", "AS", "window", "count(", "UNION", "CASE"),
    *("END", "OVER", "VALUES", "JOIN", "LATERAL", "VIEW", "explode", "INSERT", "DROP", "TABLE"),
    *("a", "r", "1", "'x'", ",", "(", ")", ";", ".", "*", "`", "--", "/*", "*/", "<", "=", "->"),
    *("[", "]", "{", "}", "@", "\\"),
]


@given(st.lists(st.sampled_from(WORDS), max_size=15).map(" ".join), st.booleans())
def test_any_text_raises_nothing_but_a_pipeline_error(text: str, select: bool) -> None:
    with contextlib.suppress(PipelineError):
        parse_select(f"SELECT {text}" if select else text)


def test_windows_by_count_become_markers_that_spark_accepts() -> None:
    sql = "SELECT Count_Window (5 , 2) AS w, 'count_window(1)' AS s FROM r GROUP BY 1"
    assert (
        to_spark_sql(sql) == f"SELECT {marker(5, 2)} AS w, 'count_window(1)' AS s FROM r GROUP BY 1"
    )
    assert to_spark_sql("SELECT 1 FROM r") == "SELECT 1 FROM r"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("count_window()", "not given a number of events; write count_window(100)"),
        ("count_window('5')", "not given a number of events"),
        ("count_window(2.5)", "not given a number of events"),
        ("count_window(1, 2, 3)", "not given a number of events"),
        ("count_window(n)", "not given a number of events"),
        ("count_window(0)", "size 0; write a number of events from 1 to 100,000"),
        ("count_window(5, 100001)", "every 100001; write a number"),
    ],
)
def test_an_invalid_window_by_count_is_refused_with_its_line(call: str, message: str) -> None:
    with pytest.raises(PipelineError) as raised:
        parse_select(f"SELECT 1 AS x\nFROM r GROUP BY {call}")
    assert message in str(raised.value)
    assert raised.value.line == 2


def test_a_window_by_count_that_is_selected_needs_a_name() -> None:
    with pytest.raises(PipelineError, match="has no name; write … AS window"):
        parse_select("SELECT count_window(5), count(*) AS n FROM r GROUP BY 1")
