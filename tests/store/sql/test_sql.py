"""SQL over views: typed, up to date, and isolated."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from millstream.errors import MillstreamError, QueryError
from millstream.store.sql.process import SqlProcess
from millstream.store.sql.service import SqlAnswer, SqlService
from millstream.store.views.table import ViewTable
from millstream.values.view_description import ViewColumn

pytestmark = pytest.mark.sql


@dataclass
class View:
    """A view as the tables sees it, fed by hand."""

    name: str
    columns: tuple[ViewColumn, ...]
    table: ViewTable
    sql: SqlService
    offset: int = field(default=0)

    def put(self, key: list[Any] | None, row: dict[str, Any] | None) -> None:
        name = None if key is None else json.dumps(key, separators=(",", ":")).encode()
        value = None if row is None else json.dumps(row).encode()
        change = self.table.apply(0, self.offset, 0, name, value)
        self.offset += 1
        if change is not None:
            self.sql.changed(self, [change])


@contextlib.asynccontextmanager
async def opened(**options: Any) -> AsyncIterator[tuple[SqlService, View, View]]:
    sql = SqlService(**{"memory": "256MB", "seconds": 5.0, "newest": 5, **options})
    cities = View(
        "cities",
        (
            ViewColumn("city", "string"),
            ViewColumn("n", "bigint"),
            ViewColumn("window", "struct<start:timestamp,end:timestamp>"),
            ViewColumn("price", "decimal(30,2)"),
            ViewColumn("ratio", "double"),
        ),
        ViewTable(keyed=True),
        sql,
    )
    newest = View("newest", (ViewColumn("id", "bigint"),), ViewTable(keyed=False, newest=5), sql)
    for view in (cities, newest):
        sql.add(view)
    try:
        yield sql, cities, newest
    finally:
        await sql.stop()


async def rows(sql: SqlService, query: str, limit: int = 100) -> list[list[Any]]:
    found: list[list[Any]] = json.loads(await sql.query(query, limit))["rows"]
    return found


async def test_a_query_sees_every_change_that_came_before_it() -> None:
    async with opened() as (sql, cities, _):
        cities.put(["Rome"], {"city": "Rome", "n": 1, "_revision": 1})
        assert await rows(sql, "SELECT city, n FROM cities") == [["Rome", 1]]
        cities.put(["Rome"], {"city": "Rome", "n": 2, "_revision": 2})
        cities.put(["Oslo"], {"city": "Oslo", "n": 5, "_revision": 5})
        assert await rows(sql, "SELECT sum(n) FROM cities") == [[7]]
        cities.put(["Rome"], None)
        assert await rows(sql, "SELECT city FROM cities") == [["Oslo"]]


async def test_columns_have_the_views_own_types() -> None:
    async with opened() as (sql, cities, _):
        window = {"start": "2026-11-16T16:41:00.000000Z", "end": "2026-11-16T16:42:00.000000Z"}
        row = {"city": "a", "n": 1, "window": window, "price": "9.10", "ratio": "NaN"}
        cities.put(["a"], row)
        answer = json.loads(await sql.query("SELECT * FROM cities", 10))
        assert [column["type"] for column in answer["columns"]] == [
            "varchar",
            "bigint",
            'struct("start" timestamp with time zone, "end" timestamp with time zone)',
            "decimal(30,2)",
            "double",
        ]
        assert answer["rows"] == [["a", 1, window, 9.1, "NaN"]]
        hour = 'SELECT hour("window".start) FROM cities WHERE "window".start >= \'2026-11-16\''
        assert await rows(sql, hour) == [[16]]


async def test_values_are_written_as_the_views_rows_write_them() -> None:
    async with opened() as (sql, _, _):
        early = "SELECT TIMESTAMPTZ '0999-06-01 12:00:00Z', TIMESTAMP '0001-01-01 00:00:00'"
        written = ["0999-06-01T12:00:00.000000Z", "0001-01-01T00:00:00.000000"]
        assert await rows(sql, early) == [written]
        maps = "SELECT MAP {}, [], MAP {'a': 1}, {'inner': MAP {}}"
        assert await rows(sql, maps) == [[{}, [], {"a": 1}, {"inner": {}}]]
        assert await rows(sql, "SELECT MAP {[1]: 2}") == [[{"[1]": 2}]]


async def test_large_rows_reach_the_process_in_small_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes, request = [], SqlProcess.request

    async def watched(self: SqlProcess, content: dict[str, Any], seconds: float) -> dict[str, Any]:
        sizes.append(sum(len(row or "") for row in content.get("rows", ())))
        return await request(self, content, seconds)

    monkeypatch.setattr(SqlProcess, "request", watched)
    async with opened() as (sql, cities, _):
        for number in range(120):
            cities.put([number], {"city": "x" * 100_000, "n": number})
        query = "SELECT count(*), sum(n), min(length(city)) FROM cities"
        assert await rows(sql, query) == [[120, sum(range(120)), 100_000]]
    assert sum(sizes) > 120 * 100_000
    assert max(sizes) < 5_000_000


async def test_a_view_without_key_is_its_newest_rows() -> None:
    async with opened() as (sql, _, newest):
        for number in range(3):
            newest.put(None, {"id": number})
        assert await rows(sql, "SELECT max(id) FROM newest") == [[2]]
        for number in range(3, 10):
            newest.put(None, {"id": number})
        assert await rows(sql, "SELECT list(id ORDER BY id) FROM newest") == [[[5, 6, 7, 8, 9]]]


async def test_rows_beyond_the_limit_are_not_sent_and_this_is_said() -> None:
    async with opened() as (sql, _, _):
        answer = json.loads(await sql.query("SELECT * FROM range(100)", 10))
        assert len(answer["rows"]) == 10
        assert answer["truncated"] is True
        assert json.loads(await sql.query("SELECT 1", 1))["truncated"] is False


ESCAPES = {
    "catalog under a CTE's name": "SELECT * FROM (WITH duckdb_tables AS (SELECT 1) SELECT 1) a, "
    "duckdb_tables",
    "sqlite catalog beside a CTE": "SELECT (WITH sqlite_master AS (SELECT 1) SELECT 1), * "
    "FROM sqlite_master",
    "a CTE of its own name": "WITH duckdb_tables AS (SELECT * FROM duckdb_tables) "
    "SELECT * FROM duckdb_tables",
    "a later CTE's name": "WITH a AS (SELECT * FROM pg_class), pg_class AS (SELECT 1) "
    "SELECT * FROM a",
    "a recursive CTE of its own name": "WITH RECURSIVE duckdb_views AS (SELECT * FROM duckdb_views "
    "UNION SELECT * FROM duckdb_views WHERE false) SELECT * FROM duckdb_views",
    "a file as a table": "SELECT * FROM '/etc/passwd'",
    "a quoted file as a table": 'SELECT * FROM "/etc/passwd"',
    "csv": "SELECT * FROM read_csv('/etc/passwd')",
    "csv in a subquery": "SELECT (SELECT count(*) FROM read_csv_auto('/etc/passwd'))",
    "csv in a CTE": "WITH c AS (SELECT * FROM read_csv('/etc/passwd')) SELECT * FROM c",
    "csv under another case": "SELECT * FROM Read_CSV('/etc/passwd')",
    "csv in a lateral join": "SELECT * FROM range(1), LATERAL read_csv('/etc/passwd')",
    "csv in a union": "SELECT 'a' UNION ALL SELECT * FROM read_text('/etc/passwd')",
    "csv in EXISTS": "SELECT EXISTS (FROM read_blob('/etc/passwd'))",
    "text": "SELECT * FROM read_text('/etc/passwd')",
    "blob": "SELECT * FROM read_blob('/etc/passwd')",
    "json": "SELECT * FROM read_json('/etc/passwd')",
    "parquet": "SELECT * FROM parquet_scan('/etc/passwd')",
    "glob": "SELECT * FROM glob('/*')",
    "sniff": "SELECT * FROM sniff_csv('/etc/passwd')",
    "environment": "SELECT getenv('HOME')",
    "settings": "SELECT current_setting('secret_directory')",
    "settings table": "SELECT * FROM duckdb_settings()",
    "settings view": "SELECT * FROM duckdb_settings",
    "secrets": "SELECT * FROM duckdb_secrets()",
    "which secret": "SELECT * FROM which_secret('s3://x', 's3')",
    "catalog": "SELECT * FROM information_schema.tables",
    "sqlite catalog": "SELECT * FROM sqlite_master",
    "postgres catalog": "SELECT * FROM pg_catalog.pg_class",
    "another schema": "SELECT * FROM store.cities",
    "another database": "SELECT * FROM memory.main.cities",
    "pragma function": "SELECT * FROM pragma_database_list()",
    "query function": "SELECT * FROM query('SELECT 1')",
    "query_table function": "SELECT * FROM query_table('cities')",
    "serialized SQL": "SELECT * FROM json_execute_serialized_sql('{}')",
    "pointers": "SELECT * FROM arrow_scan(1::POINTER, 2::POINTER, 3::POINTER)",
    "pandas": "SELECT * FROM pandas_scan(1::POINTER)",
    "a variable of Python": "SELECT * FROM incoming",
    "copy to": "COPY cities TO '/tmp/millstream_escape.csv'",
    "copy a query to": "COPY (SELECT 1) TO '/tmp/millstream_escape.csv'",
    "copy from": "COPY cities FROM '/etc/passwd'",
    "export": "EXPORT DATABASE '/tmp/millstream_escape'",
    "import": "IMPORT DATABASE '/tmp/millstream_escape'",
    "attach": "ATTACH '/tmp/millstream_escape.db'",
    "install": "INSTALL httpfs",
    "load": "LOAD httpfs",
    "set": "SET enable_external_access=true",
    "set variable": "SET VARIABLE x = 1",
    "reset": "RESET lock_configuration",
    "pragma": "PRAGMA enable_profiling",
    "call": "CALL pragma_version()",
    "checkpoint": "CHECKPOINT",
    "create": "CREATE TABLE x AS SELECT 1",
    "macro": "CREATE MACRO f() AS 1",
    "secret": "CREATE SECRET s (TYPE s3)",
    "insert": "INSERT INTO store.cities VALUES ('x')",
    "insert with a CTE": "WITH c AS (SELECT 1) INSERT INTO store.newest SELECT 1, 1, 1 FROM c",
    "delete": "DELETE FROM store.cities",
    "update": "UPDATE store.cities SET n = 1",
    "drop": "DROP VIEW cities",
    "alter": "ALTER TABLE store.cities ADD COLUMN x INT",
    "transaction": "BEGIN",
    "prepare": "PREPARE p AS SELECT 1",
    "explain": "EXPLAIN ANALYZE SELECT 1",
    "show": "SHOW ALL TABLES",
    "vacuum": "VACUUM",
    "use": "USE store",
    "detach": "DETACH memory",
    "two statements": "SELECT 1; DROP VIEW cities",
    "a comment and more": "SELECT 1 --\n; DROP VIEW cities",
    "a closed bracket": "SELECT 1) ; DROP VIEW cities; SELECT (1",
    "a closed bracket that reads": "SELECT 1) UNION (SELECT * FROM glob('/*')",
    "a parameter": "SELECT $1",
    "nothing": "",
    "nonsense": "hello",
    "only a comment": "-- nothing",
    "a null byte": "SELECT '\0'",
}


async def test_only_a_select_over_views_is_answered() -> None:
    async with opened() as (sql, cities, _):
        cities.put(["Rome"], {"city": "Rome", "n": 1})
        answered = []
        for name, query in ESCAPES.items():
            with contextlib.suppress(QueryError):
                await sql.query(query, 10)
                answered.append(name)
        assert answered in ([], ["a null byte"])
        assert not os.path.exists("/tmp/millstream_escape.csv")  # noqa: ASYNC240
        assert await rows(sql, "SELECT city FROM cities") == [["Rome"]], "and nothing was changed"


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*) FROM range(1000000000000) a, range(1000000000000) b",
        "WITH RECURSIVE t AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM t) SELECT max(x) FROM t",
        "SELECT len(range(10000000000))",
        "SELECT length(repeat('x', 4000000000))",
        "SELECT list(a.range) FROM range(100000000) a",
        "SELECT count(DISTINCT hash(a.range)) FROM range(1000000000) a",
        "SELECT string_agg(repeat('x', 1000000), '') FROM range(100000)",
    ],
)
async def test_a_query_that_needs_too_much_is_ended_and_the_next_one_is_answered(
    query: str,
) -> None:
    async with opened(seconds=1.0) as (sql, cities, _):
        cities.put(["Rome"], {"city": "Rome", "n": 1})
        with pytest.raises(QueryError, match=r"longer than|too much memory|cannot answer"):
            await sql.query(query, 10)
        assert await rows(sql, "SELECT city FROM cities") == [["Rome"]]


async def test_a_query_does_not_fail_because_of_another_one() -> None:
    greedy = "SELECT count(*) FROM range(1000000000000) a, range(1000000000000) b"
    async with opened(seconds=1.0) as (sql, cities, _):
        cities.put(["Rome"], {"city": "Rome", "n": 1})
        for _ in range(3):
            ended = asyncio.create_task(sql.query(greedy, 10))
            while not ended.done():  # beside it, as long as it runs, and after its end
                assert await rows(sql, "SELECT city FROM cities") == [["Rome"]]
            assert await rows(sql, "SELECT city FROM cities") == [["Rome"]]
            with pytest.raises(QueryError, match=r"longer than|too much memory"):
                await ended


async def test_an_answer_has_a_maximum_size() -> None:
    async with opened() as (sql, _, _):
        with pytest.raises(QueryError, match=r"serve\.query_bytes"):
            await sql.query("SELECT repeat('x', 50000) FROM range(1000)", 1000)


async def test_names_of_ctes_are_valid_where_sql_allows_them() -> None:
    async with opened() as (sql, cities, _):
        cities.put(["Rome"], {"city": "Rome", "n": 1})
        for query in (
            "WITH a AS (SELECT 1), b AS (SELECT * FROM a) SELECT * FROM b",
            "WITH a AS (SELECT 1) SELECT * FROM (WITH b AS (SELECT * FROM A) SELECT * FROM b)",
            "WITH a AS (SELECT 1) SELECT 1 WHERE EXISTS (SELECT * FROM a)",
            "WITH a AS (SELECT 1 AS x) (SELECT x FROM a INTERSECT SELECT x FROM a)",
            "WITH cities AS (SELECT n FROM cities) SELECT n FROM cities",
            "WITH RECURSIVE t AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM t WHERE x < 9) "
            "SELECT min(x) FROM t",
        ):
            assert await rows(sql, query) == [[1]], query
        with pytest.raises(QueryError, match="there is no view 'a'"):
            await sql.query("SELECT * FROM (WITH a AS (SELECT 1) SELECT 1) b, a", 10)


async def test_the_error_for_an_unknown_view_lists_the_views() -> None:
    async with opened() as (sql, cities, _):
        cities.put(["Rome"], {"city": "Rome", "n": 1})
        with pytest.raises(QueryError, match="did you mean 'cities'"):
            await sql.query("SELECT * FROM citties", 10)
        with pytest.raises(QueryError, match="town"):
            await sql.query("SELECT town FROM cities", 10)


async def test_many_queries_at_once_are_answered_or_refused_for_now() -> None:
    async with opened() as (sql, cities, _):
        cities.put(["Rome"], {"city": "Rome", "n": 1})
        await sql.query("SELECT 1", 1)
        asked = [sql.query("SELECT sum(range) FROM range(1000000)", 1) for _ in range(60)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        refused = [a for a in answers if isinstance(a, MillstreamError)]
        assert all(error.retry for error in refused)
        assert len(refused) < 60
        assert all(isinstance(a, bytes | MillstreamError) for a in answers)


async def test_the_process_is_started_again_when_it_was_killed() -> None:
    async with opened() as (sql, cities, _):
        cities.put(["Rome"], {"city": "Rome", "n": 1})
        await sql.query("SELECT 1", 1)
        assert sql.pid is not None
        os.kill(sql.pid, 9)
        assert await rows(sql, "SELECT city FROM cities") == [["Rome"]]


async def test_parameters_are_values_and_never_part_of_the_text() -> None:
    async with opened() as (sql, cities, _):
        for city, n in (("Rome", 1), ("Oslo", 2), ("' OR 1=1 --", 3)):
            cities.put([city], {"city": city, "n": n})
        query = "SELECT city FROM cities WHERE city = $city OR n >= $low ORDER BY n LIMIT $n"

        async def ask(**values: Any) -> list[list[Any]]:
            given = {"city": None, "low": None, "n": None, **values}
            found: list[list[Any]] = json.loads((await sql.answer(query, 10, given)).body)["rows"]
            return found

        assert await ask(city="Rome") == [["Rome"]]
        assert await ask(city="' OR 1=1 --") == [["' OR 1=1 --"]]
        assert await ask(low=1.5, n=1) == [["Oslo"]]
        assert await ask(low=0) == [["Rome"], ["Oslo"], ["' OR 1=1 --"]]
        with pytest.raises(QueryError, match="there are no parameters"):
            await sql.query(query, 10)


async def test_an_answer_tells_which_views_it_reads_and_whether_it_is_sorted() -> None:
    async with opened() as (sql, _, _):

        async def checked(query: str) -> tuple[set[str], bool, bool]:
            found = (await sql.answer(query, 10)).checked
            return set(found.views), found.ordered, found.volatile

        assert await checked("SELECT 1") == (set(), False, False)
        joined = "WITH a AS (FROM CITIES) SELECT a.n FROM a, newest ORDER BY 1"
        assert await checked(joined) == ({"cities", "newest"}, True, False)
        inner = "SELECT * FROM (SELECT * FROM cities ORDER BY n)"
        assert await checked(inner) == ({"cities"}, False, False)
        for volatile in ("now()", "CURRENT_DATE", "random()", "localtimestamp"):
            assert await checked(f"SELECT {volatile} FROM cities") == ({"cities"}, False, True)


async def test_a_failure_tells_whether_it_may_pass() -> None:
    async with opened(seconds=0.5) as (sql, cities, _):
        cities.put(["a"], {"city": "a", "n": 1})
        for query in (
            "SELECT city::INT FROM cities",
            "SELECT count(*) FROM range(100000) a, range(100000) b WHERE a.range + b.range = 1",
        ):
            with pytest.raises(QueryError) as failed:
                await sql.query(query, 10)
            assert failed.value.retry, query
        for query in ("SELECT town FROM cities", "SELECT", "SELECT * FROM nowhere"):
            with pytest.raises(QueryError) as failed:
                await sql.query(query, 10)
            assert not failed.value.retry, query


async def test_queries_are_described_without_their_rows() -> None:
    async with opened() as (sql, cities, _):
        cities.put(["a"], {"city": "a", "n": 1})
        found = await sql.describe(
            {
                "good": ("SELECT city, n FROM cities LIMIT $n", {"n": 5}),
                "wrong": ("SELECT town FROM cities", {}),
            }
        )
        good, wrong = found["good"], found["wrong"]
        assert isinstance(good, SqlAnswer)
        answer = json.loads(good.body)
        assert [column["name"] for column in answer["columns"]] == ["city", "n"]
        assert answer["rows"] == []
        assert "town" in str(wrong)
        assert sql.pid is None
