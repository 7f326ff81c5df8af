"""SQL has the same rows as the views, under load and after failures."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.store.sql.test_sql import View, rows

from millstream.errors import LogError, QueryError
from millstream.store.sql.service import SqlService
from millstream.store.views.table import ViewTable
from millstream.values.view_description import ViewColumn

pytestmark = pytest.mark.sql

NEWEST = 120
COLUMNS = (ViewColumn("id", "bigint"), ViewColumn("city", "string"))


@contextlib.asynccontextmanager
async def opened(**options: Any) -> AsyncIterator[dict[str, View]]:
    """Two views with a key and three without, of which one stays small."""
    sql = SqlService(**{"memory": "256MB", "seconds": 5.0, "newest": NEWEST, **options})
    keyed = {"busy": True, "other": True, "first": False, "second": False, "small": False}
    views = {
        name: View(name, COLUMNS, ViewTable(keyed=has_key, newest=NEWEST), sql)
        for name, has_key in keyed.items()
    }
    for view in views.values():
        sql.add(view)
    try:
        yield views
    finally:
        await sql.stop()


def held(view: View) -> list[list[Any]]:
    """The rows as `GET` gives them."""
    found = view.table.rows.values() if view.table.keyed else view.table.newest
    return sorted([row["id"], row["city"]] for row in found)


async def asked(view: View) -> list[list[Any]]:
    query = f"SELECT id, city FROM {view.name} ORDER BY ALL"
    found = await rows(view.sql, query, 100_000)
    assert await rows(view.sql, f"SELECT count(*) FROM {view.name}") == [[len(found)]]
    return found


async def check(views: dict[str, View]) -> None:
    for view in views.values():
        assert await asked(view) == held(view), view.name


def change(views: dict[str, View], dice: random.Random, count: int) -> None:
    for _ in range(count):
        name = dice.choice(["busy", "busy", "busy", "other", "first", "second"])
        view, number = views[name], dice.randrange(10**6)
        row = {"id": number, "city": f"c{number}", "_revision": view.offset}
        if not view.table.keyed:
            view.put(None, {"id": number, "city": "x"})
        else:
            view.put([number % 300], None if dice.random() < 0.2 else row)


async def test_a_view_without_key_keeps_its_rows_beside_a_busy_one() -> None:
    async with opened() as views:
        for number in range(104):
            views["small"].put(None, {"id": number, "city": "x"})
        assert await rows(views["small"].sql, "SELECT count(*) FROM small") == [[104]]
        for number in range(1_000):
            views["busy"].put([number], {"id": number, "city": "y"})
        assert await rows(views["small"].sql, "SELECT count(*) FROM small") == [[104]]
        views["small"].put(None, {"id": 104, "city": "x"})
        assert await rows(views["small"].sql, "SELECT count(*) FROM small") == [[105]]


async def test_every_view_has_the_same_rows_in_sql_under_load() -> None:
    dice = random.Random(7)
    async with opened() as views:
        for number in range(104):
            views["small"].put(None, {"id": number, "city": "x"})
        for round_ in range(12):
            change(views, dice, dice.choice([1, 30, 400, 2_000]))
            if round_ == 4:  # a rebuild: the topic is another one
                rebuilt = views["first"]
                rebuilt.table = ViewTable(keyed=False, newest=NEWEST)
                rebuilt.sql.changed(rebuilt, [])
            if round_ == 7:  # described again
                views["busy"].columns = (*COLUMNS, ViewColumn("more", "double"))
                views["busy"].sql.changed(views["busy"], [])
            if round_ == 9:
                assert views["busy"].sql.pid is not None
                os.kill(views["busy"].sql.pid, 9)
            await check(views)


async def test_a_retraction_is_not_a_row_of_the_view() -> None:
    async with opened() as views:
        busy = views["busy"]
        busy.put([1], {"id": 1, "city": "a", "_revision": 1})
        await check(views)
        busy.put([1], {"id": 1, "city": "b", "_revision": 1, "_kind": "retraction"})
        assert busy.table.rows["[1]"]["city"] == "a"
        await check(views)


async def test_no_query_sees_a_part_of_a_rebuilt_view() -> None:
    async with opened() as views:
        busy = views["busy"]
        for number in range(12_000):  # more than one message holds
            busy.put([number], {"id": number, "city": "y"})
        await check(views)

        async def rebuild() -> None:
            for _ in range(8):
                busy.sql.changed(busy, [])
                await rows(busy.sql, "SELECT 1")

        rebuilding = asyncio.create_task(rebuild())
        while not rebuilding.done():
            assert await rows(busy.sql, "SELECT count(*) FROM busy") == [[12_000]]
        await rebuilding


async def test_a_view_without_sql_table_gives_an_error_and_the_others_are_answered() -> None:
    async with opened() as views:
        views["small"].columns = (ViewColumn("n", "bigint"), ViewColumn("N", "bigint"))
        views["busy"].put([1], {"id": 1, "city": "a"})
        assert await asked(views["busy"]) == [[1, "a"]]
        with pytest.raises(QueryError, match=r"view small cannot be queried: .*[nN]"):
            await rows(views["busy"].sql, "SELECT * FROM small")
        views["small"].columns = COLUMNS
        views["small"].sql.changed(views["small"], [])
        await check(views)


async def test_views_that_do_not_fit_are_an_error_and_not_fewer_rows() -> None:
    async with opened(memory="8MB") as views:
        busy = views["busy"]
        await check(views)
        for number in range(60):
            busy.put([number], {"id": number, "city": os.urandom(500_000).hex()})
        with pytest.raises(LogError, match=r"8MB; raise serve\.query_memory"):
            await rows(busy.sql, "SELECT count(*) FROM busy")
        for number in range(1, 60):
            busy.put([number], None)
        assert await rows(busy.sql, "SELECT count(*) FROM busy") == [[1]]
        assert json.loads(await busy.sql.query("SELECT 1", 1))["rows"] == [[1]]
