"""SQL sees a view through the caller's visibility: the rows that it sees elsewhere, no others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import QueryError
from millstream.expression.policy import PolicyCondition, compile_rows
from millstream.store.sql.tables import QueryTimeout, SqlTables
from millstream.values.view_description import ViewColumn
from millstream.values.visibility import SEES_ALL, SEES_NOTHING, Visibility

COLUMNS = (
    ViewColumn("id", "bigint"),
    ViewColumn("tenant", "string"),
    ViewColumn("small", "tinyint"),
    ViewColumn("big", "bigint"),
    ViewColumn("at", "timestamp"),
    ViewColumn("day", "date"),
    ViewColumn("open", "boolean"),
    ViewColumn("tags", "array<string>"),
    ViewColumn("numbers", "array<bigint>"),
    ViewColumn("orders", "struct<tenant:string,n:int>"),
)
VIEW = "orders"  # also the name of a column, and both have a tenant
TENANT = Visibility("\"tenant\" = 'acme'", frozenset({"secret"}))


def fill(tables: SqlTables, name: str, columns: Any, rows: list[dict[str, Any]]) -> None:
    tables.create(name, columns, True)
    tables.update(name, [str(n) for n in range(len(rows))], [json.dumps(r) for r in rows], 0)


def ask(
    tables: SqlTables, sql: str, visible: Mapping[str, Visibility] | None, seconds: float = 20.0
) -> list[list[Any]]:
    answer, _ = tables.query(sql, 1000, seconds, 1 << 20, visible=visible)
    rows: list[list[Any]] = json.loads(answer)["rows"]
    return rows


@pytest.fixture(scope="module")
def empty() -> Iterator[SqlTables]:
    tables = SqlTables("256MB")
    yield tables
    tables.close()


@pytest.fixture
def tables(empty: SqlTables) -> SqlTables:
    columns = (
        ViewColumn("tenant", "string"),
        ViewColumn("n", "bigint"),
        ViewColumn("text", "string"),
        ViewColumn("secret", "string"),
    )
    rows: list[dict[str, Any]] = [
        {"tenant": "acme", "n": 1, "text": "10", "secret": "s1"},
        {"tenant": "acme", "n": 2, "text": "20", "secret": "s2"},
        {"tenant": "other", "n": 0, "text": "HIDDEN", "secret": "s3"},
        {"tenant": None, "n": 7, "text": "HIDDEN", "secret": "s4"},
    ]
    fill(empty, "sales", columns, rows)
    fill(empty, "cities", (ViewColumn("city", "string"),), [{"city": "Rome"}])
    return empty


words = st.sampled_from(["", "a", "A", "acme", "äß", "a%", "a_", "'", "\\", "`", "\x01", "💧"])
texts = st.none() | words | st.text(max_size=3)
small = st.integers(-128, 127)
big = st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63), 1000]) | small
times = st.datetimes().map(lambda t: f"{t.year:04}-{t:%m-%dT%H:%M:%S.%f}Z")
days = st.dates().map(lambda d: d.isoformat())
rows_of = st.fixed_dictionaries(
    {
        "tenant": texts,
        "small": st.none() | small,
        "big": st.none() | big,
        "at": st.none() | times,
        "day": st.none() | days,
        "open": st.none() | st.booleans(),
        "tags": st.none() | st.lists(texts, max_size=3),
        "numbers": st.none() | st.lists(st.none() | big, max_size=3),
        "orders": st.none() | st.fixed_dictionaries({"tenant": texts, "n": st.none() | small}),
    }
)
claims_of = st.fixed_dictionaries(
    {
        "text": texts | st.integers() | st.booleans(),
        "list": st.lists(words, max_size=3) | words,
        "number": big | texts | st.floats(),
        "time": times | texts,
        "day": days | texts,
        "flag": st.booleans() | texts,
    }
)
operators = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
values = st.sampled_from(
    [
        ("tenant", "caller.text", "'acme'", "orders.tenant"),
        ("small", "caller.number", "1000", "big", "orders.n"),
        ("big", "caller.number", "-9223372036854775807", "small"),
        ("at", "caller.time", "'2026-01-31T12:00:00Z'"),
        ("day", "caller.day", "'2026-01-31'"),
        ("open", "caller.flag", "true"),
    ]
)


@st.composite
def atoms(draw: st.DrawFn) -> str:
    """A comparison, or another condition without AND, OR, NOT."""
    choices = draw(values)
    one, other, third = (draw(st.sampled_from(choices)) for _ in range(3))
    return draw(
        st.sampled_from(
            [
                f"{one} {draw(operators)} {other}",
                f"{one} IN ({other}, {third})",
                f"{one} BETWEEN {other} AND {third}",
                f"{choices[0]} IS NULL",
                f"{choices[1]} IS NULL",
                "tenant IN (caller.list)",
                "list_contains(caller.list, orders.tenant)",
                "list_contains(tags, tenant)",
                "list_contains(tags, caller.text)",
                "list_contains(numbers, big)",
                "tenant LIKE 'a_'",
                "tenant NOT LIKE caller.text",
                "starts_with(tenant, caller.text)",
                "ends_with(tenant, orders.tenant)",
                "contains(tenant, 'a')",
                "open",
                "caller.flag",
                "open IS TRUE",
            ]
        )
    )


conditions = st.recursive(
    atoms(),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(
            lambda three: f"({three[0]}) {three[1]} {three[2]}"
        ),
        inner.map(lambda one: f"NOT ({one})"),
    ),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None)
@given(conditions, claims_of, st.lists(rows_of, max_size=6))
def test_a_policy_means_the_same_in_sql_and_in_python(
    text: str, claims: dict[str, Any], rows: list[dict[str, Any]]
) -> None:
    try:
        PolicyCondition(text).check(COLUMNS)
    except QueryError:
        return
    filled = PolicyCondition(text).fill(claims, COLUMNS)
    numbered = [{"id": number, **row} for number, row in enumerate(rows)]
    visible = None if filled is None else compile_rows(filled, COLUMNS)
    expected = [row["id"] for row in numbered if visible is None or visible(row)]
    fill(_shared(), VIEW, COLUMNS, numbered)
    found = ask(_shared(), "SELECT id FROM orders ORDER BY id", {VIEW: Visibility(filled)})
    assert [id_ for (id_,) in found] == expected


_SHARED: list[SqlTables] = []


def _shared() -> SqlTables:
    if not _SHARED:
        _SHARED.append(SqlTables("256MB"))
    return _SHARED[0]


def test_a_query_sees_visible_rows_and_columns_only(tables: SqlTables) -> None:
    visible = {"sales": TENANT}
    assert ask(tables, "SELECT * FROM sales ORDER BY n", visible) == [
        ["acme", 1, "10"],
        ["acme", 2, "20"],
    ]
    assert ask(tables, "SELECT count(*) FROM sales", visible) == [[2]]
    assert ask(tables, "SELECT count(*) FROM sales", {"sales": SEES_NOTHING}) == [[0]]
    assert ask(tables, "SELECT count(*) FROM sales", {"sales": SEES_ALL}) == [[4]]
    assert ask(tables, "SELECT count(*) FROM sales", None) == [[4]]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 10 // n FROM sales",
        "SELECT text::INT FROM sales",
        "SELECT CASE WHEN tenant <> 'acme' OR tenant IS NULL THEN error(text) END FROM sales",
        "SELECT * FROM sales WHERE error(text) IS NULL AND tenant <> 'acme'",
        "SELECT (SELECT max(b.text::INT) FROM sales b WHERE b.n >= a.n) FROM sales a",
        "SELECT sum(text::INT) OVER (ORDER BY n) FROM sales",
        "SELECT tenant, sum(text::INT) FROM sales GROUP BY tenant HAVING max(text::INT) > 0",
        "SELECT text::INT FROM sales USING SAMPLE 100%",
        "SELECT text::INT FROM sales JOIN cities ON text::INT > 0",
        "WITH s AS (SELECT text::INT AS t FROM sales) SELECT * FROM s WHERE t > 0",
        "SELECT * FROM (PIVOT sales ON tenant USING sum(text::INT))",
        'SELECT text::INT FROM main."SALES"',
        "SELECT list(text::INT) FROM sales",
        "SELECT text::INT FROM sales UNION ALL SELECT n FROM sales",
        "FROM (SUMMARIZE SELECT * FROM sales)",
    ],
)
def test_a_query_is_never_evaluated_on_hidden_rows(tables: SqlTables, sql: str) -> None:
    visible = {"sales": TENANT, "cities": SEES_ALL}
    try:
        shown = json.dumps(ask(tables, sql, visible))
    except QueryError as error:  # an error that visible rows cause
        shown = str(error)
    for mark in ("HIDDEN", "other", "s1", "s3", "secret", "zero"):
        assert mark not in shown


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT secret FROM sales",
        "SELECT secre FROM sales",
        "SELECT sales.secrets FROM sales",
        "SELECT * EXCLUDE (secre) FROM sales",
        "SELECT COLUMNS('s.cret') FROM sales",
        "SELECT * FROM store.sales",
        "SELECT * FROM memory.main.sales",
        "SELECT * FROM temp.sales",
        "SELECT * FROM information_schema.columns",
        "SELECT * FROM duckdb_columns()",
        "SELECT * FROM pg_catalog.pg_attribute",
        "SELECT * FROM incoming",
        "EXPLAIN SELECT * FROM sales",
        "DESCRIBE store.sales",
        "SELECT * FROM query('SELECT * FROM store.sales')",
        "SELECT * FROM cities",
        "SELECT * FROM sale",
        "SELECT * FROM sales.secret",
        "SELECT * FROM (SHOW TABLES)",
    ],
)
def test_what_is_hidden_does_not_exist(tables: SqlTables, sql: str) -> None:
    with pytest.raises(QueryError) as caught:
        ask(tables, sql, {"sales": TENANT})
    for name in ("secret", "s3", "HIDDEN", "cities", "city"):
        assert name in sql or name not in str(caught.value)


def test_a_cte_may_have_the_name_of_a_view(tables: SqlTables) -> None:
    sql = "WITH sales AS (SELECT * FROM sales) SELECT count(*) FROM sales"
    assert ask(tables, sql, {"sales": TENANT}) == [[2]]
    sql = "WITH cities AS (SELECT * FROM sales) SELECT count(*) FROM cities"
    assert ask(tables, sql, {"sales": TENANT, "cities": SEES_ALL}) == [[2]]


def test_types_are_the_same_as_without_a_policy() -> None:
    columns = (
        ViewColumn("a", "decimal(30,2)"),
        ViewColumn("b", "struct<start:timestamp,end:timestamp>"),
        ViewColumn("c", "map<string,bigint>"),
        ViewColumn("d", "array<struct<x:date>>"),
        ViewColumn("e", "timestamp_ntz"),
        ViewColumn("f", "float"),
        ViewColumn("g", "tinyint"),
    )
    tables = SqlTables("256MB")
    fill(tables, "v", columns, [{"a": 1.5, "c": {"k": 1}, "f": "NaN", "g": 3}])
    answers = [
        json.loads(tables.query("SELECT * FROM v", 9, 20.0, 1 << 20, visible={"v": visible})[0])
        for visible in (SEES_ALL, Visibility("NOT FALSE"))
    ]
    tables.close()
    assert answers[0]["columns"] == answers[1]["columns"]
    assert answers[0]["rows"] == answers[1]["rows"]


def test_the_time_limit_holds_for_restricted_queries_too(tables: SqlTables) -> None:
    slow = "SELECT count(*) FROM sales, range(100000000) a, range(1000) b"
    with pytest.raises(QueryTimeout):
        ask(tables, slow, {"sales": TENANT}, seconds=0.3)
    assert ask(tables, "SELECT count(*) FROM sales", {"sales": TENANT}) == [[2]]
