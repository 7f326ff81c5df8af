"""Selections and orders: the same answers as DuckDB's, and errors that say what to do."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expression.sample_rows import (
    COLUMNS,
    ROW,
    SLOW_TO_READ,
    STAMPS,
    TYPES,
    at_most,
    open_duckdb,
    rows,
)

from millstream.errors import QueryError
from millstream.serve.views.filter import Deadline, compile_select, compile_where, order_rows


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with open_duckdb() as connection:
        yield connection


def test_a_selection_keeps_names_and_order() -> None:
    picked = compile_select(("window.start", "n"), COLUMNS)(ROW)
    assert list(picked.items()) == [("window.start", STAMPS[0]), ("n", 4)]
    with pytest.raises(QueryError, match="did you mean"):
        compile_select(("citty",), COLUMNS)
    with pytest.raises(QueryError, match="cannot select"):
        compile_select(("n + 1",), COLUMNS)


@pytest.mark.parametrize("value", ["NaN", "-Infinity", 1.5, Decimal("0.10"), None])
def test_a_selection_has_the_values_that_the_row_has(value: object) -> None:
    assert compile_select(("x",), COLUMNS)({"x": value}) == {"x": value}


@given(st.lists(rows, max_size=8))
@settings(max_examples=40, deadline=None)
def test_an_order_is_the_same_as_in_duckdb(
    database: duckdb.DuckDBPyConnection, several: list[dict[str, Any]]
) -> None:
    order = "n DESC, city, x DESC NULLS FIRST, mtime, m"
    texts = [json.dumps(row) for row in several]
    theirs = database.execute(
        f"SELECT n, city, x, m FROM (SELECT unnest(json_transform(row, '{TYPES}')) FROM "
        f"(SELECT unnest(?::VARCHAR[]) AS row)) ORDER BY {order}",
        [texts],
    ).fetchall()
    ours = [row for _, row in order_rows(list(enumerate(several)), order, COLUMNS)]
    assert [(r["n"], r["city"], r["x"], r["m"]) for r in ours] == [
        (n, city, "NaN" if x != x else x, m) for n, city, x, m in theirs
    ]


@pytest.mark.parametrize("where", SLOW_TO_READ.values(), ids=SLOW_TO_READ)
def test_text_that_is_slow_to_parse_is_refused_at_once(where: str) -> None:
    with at_most(3.0), pytest.raises(QueryError):
        compile_where(where, COLUMNS)
    with at_most(3.0), pytest.raises(QueryError):
        order_rows([], where.removesuffix(" = 1"), COLUMNS)


def test_an_error_suggests_sql_for_what_a_filter_cannot_do() -> None:
    with pytest.raises(QueryError, match="POST /v1/query"):
        compile_where("count(*) > 1", COLUMNS)


def test_an_order_that_takes_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()  # each look at it takes a second
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    several = [(n, {"n": -n * 7919 % 1_000}) for n in range(1_000)]
    with pytest.raises(QueryError, match="took longer than 100 s"):  # to evaluate them takes 63
        order_rows(several, "n", COLUMNS, Deadline(100))


def test_a_selection_and_an_order_have_a_maximum_length() -> None:
    with pytest.raises(QueryError, match="1001 columns"):
        compile_select(("n",) * 1_001, COLUMNS)
    with pytest.raises(QueryError, match="33 parts"):
        order_rows([], ", ".join(["n"] * 33), COLUMNS)
