"""Values for the parameters of a named query."""

from __future__ import annotations

from typing import Any

import pytest

from millstream import App
from millstream.errors import QueryError
from millstream.pipeline.model import NamedQuery
from millstream.serve.queries.parameters import values_from_json, values_from_texts


def query() -> NamedQuery:
    sql = "SELECT :n, :price, :city, :all FROM v"
    return App("shop").query("q", sql=sql, n=50, price=1.5, city=None, all=False)


def test_texts_become_values_of_the_declared_types() -> None:
    given = {"n": "-3", "price": "2", "city": "' OR 1=1 --", "all": "true"}
    assert values_from_texts(query(), given) == {
        "n": -3,
        "price": 2.0,
        "city": "' OR 1=1 --",
        "all": True,
    }
    defaults = {"n": 50, "price": 1.5, "city": None, "all": False}
    assert values_from_texts(query(), {}) == defaults
    assert values_from_texts(query(), {"n": "", "city": ""}) == {**defaults, "n": None, "city": ""}
    assert values_from_texts(query(), {"after": "x"}, ["after"]) == defaults


def test_json_must_have_the_declared_types() -> None:
    given = {"n": 7, "price": 3, "city": "Oslo", "all": None}
    assert values_from_json(query(), given) == {**given, "price": 3.0}
    texts = {"n": "7", "price": "3", "city": "Oslo", "all": "true"}
    assert values_from_json(query(), texts) == {**given, "price": 3.0, "all": True}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"m": "1"}, "query q has no parameter 'm'; write one of 'n', 'price', 'city', 'all'"),
        ({"pric": "1"}, "did you mean 'price'?"),
        ({"n": "1.5"}, "parameter n is '1.5'; write a whole number"),
        ({"n": str(2**63)}, "parameter n is '9223372036854775808'"),
        ({"n": "1" * 5000}, "parameter n is '1111"),
        ({"price": "nan"}, "parameter price is 'nan'; write a number"),
        ({"price": "cheap"}, "parameter price is 'cheap'"),
        ({"all": "perhaps"}, "parameter all is 'perhaps'; write true or false"),
        ({"city": "x" * 10_001}, "more than 10000 characters"),
    ],
)
def test_a_wrong_text_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(QueryError) as error:
        values_from_texts(query(), given)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "given",
    [{"n": "x"}, {"n": 1.0}, {"n": True}, {"n": 2**63}, {"city": 1}, {"all": 1}, {"n": [1]},
     {"price": True}, {"price": 10**400}, {"x": 1}],
)  # fmt: skip
def test_a_wrong_value_is_named(given: dict[str, Any]) -> None:
    with pytest.raises(QueryError, match="parameter '?" + next(iter(given))):
        values_from_json(query(), given)
