"""Rows of every column type, and DuckDB to compare answers with."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import duckdb
from hypothesis import strategies as st

from millstream.schema.column_types import duckdb_type, parse_type
from millstream.values.view_description import ViewColumn

COLUMNS = (
    ViewColumn("n", "bigint"),
    ViewColumn("m", "bigint"),
    ViewColumn("x", "double"),
    ViewColumn("city", "string"),
    ViewColumn("tag", "string"),
    ViewColumn("yes", "boolean"),
    ViewColumn("mtime", "timestamp"),
    ViewColumn("day", "date"),
    ViewColumn("window", "struct<start:timestamp,end:timestamp>"),
    ViewColumn("tags", "array<string>"),
)
STAMPS = [f"2026-11-16T1{hour}:00:00.000000Z" for hour in range(4)]
TEXTS = ["", "a", "B", "ab", "Berlin", "a%b", "a_b", "é", "日本"]


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


rows = st.fixed_dictionaries(
    {
        "n": optional(st.integers(-5, 5)),
        "m": optional(st.integers(-3, 3)),
        "x": optional(st.sampled_from([-1.5, 0.0, 0.5, 2.0, "NaN"])),
        "city": optional(st.sampled_from(TEXTS)),
        "tag": optional(st.sampled_from(TEXTS)),
        "yes": optional(st.booleans()),
        "mtime": optional(st.sampled_from(STAMPS)),
        "day": optional(st.sampled_from(["2026-11-15", "2026-11-16"])),
        "window": optional(
            st.fixed_dictionaries(
                {"start": optional(st.sampled_from(STAMPS)), "end": st.sampled_from(STAMPS)}
            )
        ),
        "tags": optional(st.lists(st.sampled_from(TEXTS), max_size=3)),
    }
)

TYPES = json.dumps({c.name: duckdb_type(parse_type(c.type)) for c in COLUMNS})

ROW = {
    "n": 4,
    "x": "NaN",
    "city": "Berlin",
    "mtime": STAMPS[1],
    "window": {"start": STAMPS[0], "end": STAMPS[1]},
    "tags": ["a"],
}

SLOW_TO_READ = {
    "indexes": "n" + "[1]" * 2_600 + " = 1",
    "methods": "city" + ".lower()" * 900 + " = 'a'",
    "a long path": "n" + ".a" * 3_900 + " = 1",
    "sums": "n" + "+n" * 3_900 + " = 1",
    "brackets": "(" * 3_900 + "n" + ")" * 3_900 + " = 1",
}


@contextlib.contextmanager
def open_duckdb() -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect(":memory:")
    connection.execute("SET TimeZone='UTC'").fetchall()
    connection.execute("SET error_on_division_by_zero=false").fetchall()
    yield connection
    connection.close()


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fail if the block takes more processor time; unlike wall time, load does not change it."""
    began = time.process_time()
    yield
    assert time.process_time() - began < seconds
