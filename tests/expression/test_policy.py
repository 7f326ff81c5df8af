"""Conditions of policies: what they allow, and what they become for a caller."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import QueryError
from millstream.expression.policy import PolicyCondition, compile_rows
from millstream.values.view_description import ViewColumn

COLUMNS = (
    ViewColumn("tenant", "string"),
    ViewColumn("n", "bigint"),
    ViewColumn("ratio", "double"),
    ViewColumn("price", "decimal(10,2)"),
    ViewColumn("at", "timestamp"),
    ViewColumn("day", "date"),
    ViewColumn("open", "boolean"),
    ViewColumn("tags", "array<string>"),
    ViewColumn("window", "struct<start:timestamp,end:timestamp>"),
)
TENANT = "tenant = caller.tenant OR caller.role = 'support'"


def filled(text: str, **claims: Any) -> str | None:
    return PolicyCondition(text).fill(claims, COLUMNS)


def test_claims_become_literals() -> None:
    assert filled(TENANT, tenant="acme") == "\"tenant\" = 'acme'"
    assert filled("n BETWEEN caller.low AND 10", low=-3) == '"n" BETWEEN -3 AND 10'
    assert filled("open = caller.open", open=True) == '"open" = TRUE'
    assert filled("day = caller.day", day="2026-01-31") == "\"day\" = CAST('2026-01-31' AS DATE)"
    assert filled("n = caller.n", n="7") == '"n" = 7'


def test_a_condition_that_holds_for_every_row_is_none() -> None:
    assert filled(TENANT, role="support") is None
    assert filled(TENANT, role="support", tenant=5) is None
    assert filled("caller.admin", admin=True) is None


@pytest.mark.parametrize("claim", [None, 1.5, {"a": 1}, [], ["acme"], "a\0b", "\ud800", 2**70, 7])
def test_a_claim_that_does_not_fit_makes_the_comparison_not_true(claim: object) -> None:
    assert filled("tenant = caller.tenant", tenant=claim) == "FALSE"
    assert filled("tenant <> caller.tenant", tenant=claim) == "FALSE"
    assert filled("NOT (tenant = caller.tenant)", tenant=claim) == "FALSE"


def test_a_list_claim_is_a_list_of_choices() -> None:
    for text in (
        "tenant IN (caller.groups)",
        "list_contains(caller.groups, tenant)",
        "array_contains(caller.groups, tenant)",
    ):
        assert filled(text, groups=["a", "b"]) == "\"tenant\" IN ('a', 'b')"
        assert filled(text, groups=["a", 1]) == "FALSE"
        assert filled(text, groups=[str(n) for n in range(1001)]) == "FALSE"
        assert filled(text) == "FALSE"
    assert filled("tenant IN (caller.groups)", groups=[]) == "FALSE"
    assert filled("tenant IN (caller.groups, 'public')", groups=["a"]) == (
        "\"tenant\" IN ('a', 'public')"
    )
    assert filled("tenant IN (caller.one)", one="a") == "\"tenant\" IN ('a')"


def test_callers_who_see_the_same_rows_have_the_same_condition() -> None:
    texts = {filled(TENANT, tenant="acme", role=role) for role in ("sales", None, 5, "x")}
    assert len(texts) == 1


@given(st.text())
def test_no_claim_is_read_as_sql(claim: str) -> None:
    rows = filled("tenant = caller.tenant", tenant=claim)
    assert rows is not None
    matches = compile_rows(rows, COLUMNS)
    assert not matches({"tenant": f"{claim}x"})
    assert not matches({"tenant": None})
    assert matches({"tenant": claim}) == ("\0" not in claim)


def test_a_claim_with_a_backtick_does_not_choose_the_dialect() -> None:
    claim = "`\\"
    rows = filled("tenant = caller.tenant AND open", tenant=claim)
    assert rows is not None
    assert compile_rows(rows, COLUMNS)({"tenant": claim, "open": True})
    assert not compile_rows(rows, COLUMNS)({"tenant": claim, "open": False})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tenat = caller.tenant", "there is no column 'tenat'; did you mean 'tenant'?"),
        ("tenant", "is not a condition"),
        ("'x'", "is not a condition"),
        ("n + 1 > 2", "cannot contain 'n + 1'"),
        ("n / 0 > 2", "cannot contain 'n / 0'"),
        ("lower(tenant) = 'x'", "cannot contain 'LOWER(tenant)'"),
        ("tenant IS NOT DISTINCT FROM caller.tenant", "cannot contain"),
        ("tenant IN (SELECT 1)", "cannot contain"),
        ("tenant LIKE tenant", "cannot contain"),
        ("ratio > 1", "cannot use 'ratio'"),
        ("price > 1", "cannot use 'price'"),
        ("n > 1.5", "cannot contain the number 1.5"),
        ("n = tenant", "mixes text and a number"),
        ("at > day", "mixes date and timestamp"),
        ("n = 'x'", "mixes text and a number"),
        ("window = 'x'", "mixes struct"),
        ("window.begin > '2026-01-01'", "'window' has no field 'begin'"),
        ("caller = 'x'", "is no claim of the caller"),
        ("caller.address.city = 'x'", "is no claim of the caller"),
        ("tenant = ", "cannot read"),
    ],
)
def test_a_wrong_condition_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(QueryError) as caught:
        PolicyCondition(text).check(COLUMNS)
    assert problem in str(caught.value)


def test_a_condition_knows_its_claims_and_columns() -> None:
    condition = PolicyCondition("window.start > caller.since AND Tenant = caller.tenant")
    assert condition.claims == {"since", "tenant"}
    assert condition.columns == {"window", "Tenant"}
    assert condition.fill({"tenant": "a", "since": "2026-01-31"}, COLUMNS) == (
        '"window"."start" > CAST(\'2026-01-31T00:00:00.000000Z\' AS TIMESTAMPTZ) '
        "AND \"tenant\" = 'a'"
    )


def test_a_condition_can_be_moved_into_a_struct() -> None:
    entry = (ViewColumn("key", "struct<tenant:string>"),)
    moved = PolicyCondition(TENANT).within("key")
    assert moved.fill({"tenant": "a`b"}, entry) == '"key"."tenant" = \'a`b\''
