"""Selections and orders: the same answers as DuckDB's, and errors that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import duckdb
import pytest
from tests.expression.sample_rows import (
    COLUMNS,
    ROW,
    SLOW_TO_READ,
    STAMPS,
    at_most,
    open_duckdb,
)

from millstream.errors import QueryError
from millstream.serve.views.filter import compile_order, compile_select, compile_where


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


@pytest.mark.parametrize("where", SLOW_TO_READ.values(), ids=SLOW_TO_READ)
def test_text_that_is_slow_to_parse_is_refused_at_once(where: str) -> None:
    with at_most(3.0), pytest.raises(QueryError):
        compile_where(where, COLUMNS)
    with at_most(3.0), pytest.raises(QueryError):
        compile_order(where.removesuffix(" = 1"), COLUMNS)


def test_an_error_suggests_sql_for_what_a_filter_cannot_do() -> None:
    with pytest.raises(QueryError, match="POST /v1/query"):
        compile_where("count(*) > 1", COLUMNS)


def test_a_selection_and_an_order_have_a_maximum_length() -> None:
    with pytest.raises(QueryError, match="1001 columns"):
        compile_select(("n",) * 1_001, COLUMNS)
    with pytest.raises(QueryError, match="33 parts"):
        compile_order(", ".join(["n"] * 33), COLUMNS)
