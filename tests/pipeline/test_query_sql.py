"""Named queries: what a user may declare, in Python and in SQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream import App
from millstream.errors import PipelineError
from millstream.pipeline.load import load
from millstream.pipeline.model import NamedQuery
from millstream.pipeline.query_sql import parse_query

SCRIPT = """\
CREATE STREAM clicks (product STRING);
CREATE VIEW viewed WITH (key = 'product') AS
  SELECT product, count(*) AS views FROM clicks GROUP BY product;
"""


def shop() -> App:
    app = App("shop")
    app.stream("clicks", schema="product STRING")
    counted = "SELECT product, count(*) AS views FROM clicks GROUP BY product"
    app.view("viewed", key="product", sql=counted)
    return app


def in_sql(tmp_path: Path, statement: str) -> NamedQuery:
    path = tmp_path / "shop.sql"
    path.write_text(SCRIPT + statement, encoding="utf-8")
    return load(path).queries["top"]


def test_a_query_has_parameters_with_types_and_defaults() -> None:
    app = shop()
    app.query(
        "top",
        sql="SELECT * FROM viewed WHERE views > :low AND (:city IS NULL OR product = :city) "
        "AND (:price IS NULL OR :all) ORDER BY views DESC LIMIT :n",
        key="product",
        n=50,
        low=0.5,
        city=None,
        price=float,
        all=True,
        description="The most viewed ones",
    )
    app.check()
    query = app.queries["top"]
    assert query.views == ("viewed",)
    assert query.key == ("product",)
    assert query.sql.endswith("LIMIT $n")
    assert {each.name: (each.type, each.default) for each in query.parameters} == {
        "n": ("integer", 50),
        "low": ("number", 0.5),
        "city": ("string", None),
        "price": ("number", None),
        "all": ("boolean", True),
    }


def test_a_query_in_sql_is_the_one_in_python(tmp_path: Path) -> None:
    found = in_sql(
        tmp_path,
        "CREATE QUERY top (n = 50, low NUMBER = -1, city STRING = NULL, other INTEGER, b = FALSE, "
        "word = 'a;b') WITH (key = 'product', description = 'Most') AS\n"
        "SELECT product FROM viewed WHERE views > :low AND product <> coalesce(:city, :word)"
        " AND :b OR :other = 1 LIMIT :n;",
    )
    assert {each.name: (each.type, each.default) for each in found.parameters} == {
        "n": ("integer", 50),
        "low": ("number", -1.0),
        "city": ("string", None),
        "other": ("integer", None),
        "b": ("boolean", False),
        "word": ("string", "a;b"),
    }
    assert (found.key, found.description, found.views) == (("product",), "Most", ("viewed",))


def test_only_a_colon_before_a_value_makes_a_parameter() -> None:
    sql = "SELECT :n, x::INT, l[1:n], l[:n], [:n], {'a':n}, ':n' FROM t WHERE a IN (:n,:k) -- :m"
    parsed = parse_query(sql)
    assert parsed.parameters == ("n", "k")
    assert parsed.text == (
        "SELECT $n, x::INT, l[1:n], l[:n], [$n], {'a':n}, ':n' FROM t WHERE a IN ($n,$k) -- :m"
    )


def test_a_query_reads_tables_through_ctes_and_subqueries() -> None:
    parsed = parse_query(
        "WITH a AS (SELECT * FROM One) SELECT x AS y FROM a JOIN (SELECT * FROM two) USING (x)"
    )
    assert (set(parsed.tables), parsed.columns) == ({"one", "two"}, ("y",))
    assert parse_query("FROM one").columns is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sql": "SELECT :nn FROM viewed"}, ":nn, which is not declared; did you mean :n?"),
        ({"sql": "SELECT :limit_to + :n FROM viewed"}, "give it a default, as in limit_to=50"),
        ({"sql": "SELECT * FROM viewed"}, "declares the parameter 'n', which its sql does not use"),
        ({"sql": "SELECT * FROM viewed LIMIT ?"}, "which has no name; write :n"),
        ({"sql": "SELECT * FORM viewed LIMIT :n"}, "did you mean FROM?"),
        ({"sql": "DELETE FROM viewed"}, "is not a SELECT but DELETE"),
        ({"sql": "SELECT 1; SELECT 2"}, "more than one statement"),
        ({"sql": "SELECT :n"}, "reads no view"),
        ({"sql": None}, "has sql=None"),
        ({"sql": "SELECT * FROM viewd LIMIT :n"}, "which is not a view; did you mean 'viewed'?"),
        ({"sql": "SELECT * FROM clicks LIMIT :n"}, "'clicks', a stream; make a view"),
        ({"sql": "SELECT * FROM main.viewed LIMIT :n"}, "a query reads only views"),
        ({"n": [1]}, "has n=[1]"),
        ({"n": float("inf")}, "has n=inf"),
        ({"n": 2**63}, "has n=9223372036854775808"),
        ({"sql": "SELECT :after + :n FROM viewed", "after": 1}, "'after', a name that is taken"),
        ({"sql": "SELECT :N + :n FROM viewed", "N": 1}, "'N', which is not made of a-z"),
        ({"key": ["prod"]}, "key column 'prod', which is not in its result; did you mean"),
        ({"descripton": "x"}, "did you mean 'description'?"),
        ({"name": "viewed"}, "the name 'viewed' is taken by the view"),
        ({"name": "Top"}, "query name 'Top' is not made of"),
    ],
)
def test_a_mistake_is_reported_with_what_to_write(options: dict[str, Any], message: str) -> None:
    app = shop()
    given = {"name": "top", "sql": "SELECT product FROM viewed LIMIT :n", "n": 50, **options}

    def declare() -> None:
        app.query(**given)
        app.check()

    with pytest.raises(PipelineError) as error:
        declare()
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("statement", "line", "message"),
    [
        ("CREATE QUERY top (n = 50,\n n = 2) AS SELECT :n FROM viewed", 5, "'n' is there twice"),
        ("CREATE QUERY top (n DATE = 1) AS SELECT :n FROM viewed", 4, "a type is expected"),
        ("CREATE QUERY top (n INT = 'a') AS SELECT :n FROM viewed", 4, "'a' is not of the type"),
        ("CREATE QUERY top (n = -'a') AS SELECT :n FROM viewed", 4, "a number is expected"),
        ("CREATE QUERY top (n) AS SELECT :n FROM viewed", 4, "write n = 50"),
        ("CREATE QUERY top AS SELECT *\nFROM viewed\nLIMIT ?;", 4, "which has no name"),
        ("CREATE QUERY top AS SELECT * FROM viewed CREATE VIEW x AS SELECT 1", 4, "no semicolon"),
    ],
)
def test_a_mistake_in_a_script_has_its_line(
    tmp_path: Path, statement: str, line: int, message: str
) -> None:
    with pytest.raises(PipelineError) as error:
        in_sql(tmp_path, statement)
    assert message in str(error.value)
    assert error.value.line == line
