from __future__ import annotations

import pytest

from millstream.expression.condition import parse
from millstream.expression.equality import Equality, find_equality
from millstream.values.view_description import ViewColumn

COLUMNS = (
    ViewColumn("city", "string"),
    ViewColumn("n", "bigint"),
    ViewColumn("x", "double"),
    ViewColumn("at", "timestamp"),
    ViewColumn("window", "struct<start:string>"),
)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("city = 'Berlin'", ("city", "Berlin")),
        ("'it''s' = city", ("city", "it's")),
        ("n = 7", ("n", 7)),
        ("x > 1 AND (city = 'a' AND n < 3)", ("city", "a")),
        ("x = 1", None),  # 1 and 1.0
        ("at = '2026-01-31T00:00:00Z'", None),  # a time has several spellings
        ("window.start = 'a'", None),
        ("city = 'a' OR n = 1", None),
        ("NOT city = 'a'", None),
        ("city = 7", None),
        ("n = '7'", None),
        ("n = 7.0", None),
        ("lower(city) = 'a'", None),
        ("city = city", None),
        ("CITY = 'a'", None),
        ("n > 1", None),
    ],
)
def test_only_a_value_that_every_matching_row_has_is_found(
    where: str, expected: Equality | None
) -> None:
    assert find_equality(parse(where, "where"), COLUMNS) == expected


def test_a_long_condition_is_searched_without_recursion() -> None:
    where = " AND ".join(["x > 1"] * 150 + ["city = 'a'"])
    assert find_equality(parse(where, "where"), COLUMNS) == ("city", "a")
