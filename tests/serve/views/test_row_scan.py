"""Scans: the same rows as a plain sort and as DuckDB, in short steps."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expression.sample_rows import COLUMNS, TYPES, open_duckdb, rows

from millstream.errors import QueryError
from millstream.serve.views.encoding import Encoding
from millstream.serve.views.filter import Deadline, compile_where
from millstream.serve.views.row_scan import RowScan, in_slices

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with open_duckdb() as connection:
        yield connection


def scan(several: Rows, where: str = "", **options: Any) -> RowScan:
    test = compile_where(where, COLUMNS) if where else None
    keys = options.pop("keys", [json.dumps([number]) for number in range(len(several))])
    encoding = Encoding(test, dict, columns=COLUMNS)
    return RowScan(keys, several, encoding, Deadline(100.0), **options)


def found(scanned: RowScan) -> Rows:
    for _ in scanned.steps():
        pass
    return [dict(row) for _, row in scanned]


@pytest.mark.parametrize("limit", [None, 0, 3])
@given(several=st.lists(rows, max_size=8))
@settings(max_examples=40, deadline=None)
def test_an_order_is_the_same_as_in_duckdb(
    database: duckdb.DuckDBPyConnection, limit: int | None, several: Rows
) -> None:
    order = "n DESC, city, x DESC NULLS FIRST, mtime, m"
    texts = [json.dumps(row) for row in several]
    theirs = database.execute(
        f"SELECT n, city, x, m FROM (SELECT unnest(json_transform(row, '{TYPES}')) FROM "
        f"(SELECT unnest(?::VARCHAR[]) AS row)) ORDER BY {order}",
        [texts],
    ).fetchall()
    ours = found(scan(several, order=order, limit=limit))
    assert [(r["n"], r["city"], r["x"], r["m"]) for r in ours] == [
        (n, city, "NaN" if x != x else x, m) for n, city, x, m in theirs[:limit]
    ]


@pytest.mark.parametrize("limit", [None, 0, 1, 700, 999, 1_000, 1_001, 4_999, 20_000])
@pytest.mark.parametrize("where", ["", "n % 3 = 1"])
def test_many_rows_are_sorted_as_a_plain_sort_does(limit: int | None, where: str) -> None:
    draw = random.Random(7)
    several: Rows = [{"n": draw.randrange(2_000), "city": str(i)} for i in range(6_000)]
    matching = [row for row in several if not where or row["n"] % 3 == 1]
    ordered = scan(several, where, order="n", limit=limit)
    assert found(ordered) == sorted(matching, key=lambda row: row["n"])[:limit]
    assert ordered.total == len(matching)
    assert ordered.truncated == (limit is not None and limit < len(matching))
    by_key = sorted(matching, key=lambda row: json.dumps([int(row["city"])]))
    assert found(scan(several, where, limit=limit)) == by_key[:limit]


def test_rows_without_a_key_are_the_newest() -> None:
    several: Rows = [{"n": number} for number in range(10)]
    assert found(scan(several, keys=None, limit=3)) == several[-3:]
    assert found(scan(several, keys=None, limit=0)) == []
    assert found(scan(several, "n < 5", keys=None, limit=2)) == several[3:5]


def test_an_order_that_takes_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()  # each look at it takes a second
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    several: Rows = [{"n": -n * 7919 % 1_000} for n in range(1_000)]
    with pytest.raises(QueryError, match="took longer than 100 s"):  # to evaluate them takes 63
        found(scan(several, order="n"))


async def test_scans_leave_the_loop_to_others_and_share_their_time() -> None:
    ended: list[int] = []

    def steps(number: int) -> Iterator[None]:
        for _ in range(200):
            end = time.process_time() + 0.0005
            while time.process_time() < end:
                pass
            yield
        ended.append(number)

    async def others() -> int:
        turns = 0
        while len(ended) < 3:
            await asyncio.sleep(0)
            turns += 1
        return turns

    counting = asyncio.create_task(others())
    await asyncio.gather(*(in_slices(steps(each)) for each in range(3)))
    assert await counting > 5
