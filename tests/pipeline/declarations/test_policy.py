"""Declaring who sees which rows and columns, in Python and SQL."""

from __future__ import annotations

from typing import Any

import pytest

from millstream import App
from millstream.errors import PipelineError
from millstream.pipeline.model import Policy, View
from millstream.pipeline.sql_script import read_script

SQL = "SELECT tenant, city, count(*) AS n, max(card) AS card FROM orders GROUP BY 1, 2"
ROWS = "tenant = caller.tenant OR caller.role = 'support'"
HIDE = {"card": "caller.role = 'billing'"}


def view(**options: Any) -> View:
    declared = {"sql": SQL, "key": ["tenant", "city"], **options}
    made: View = App("shop").view("sales", **declared)
    return made


def texts(policy: Policy) -> tuple[str | None, dict[str, str]]:
    rows = None if policy.rows is None else policy.rows.text
    return rows, {name: shown.text for name, shown in policy.hide.items()}


def test_a_view_and_a_stream_have_policies() -> None:
    assert texts(view(rows=ROWS, hide=HIDE).policy) == (ROWS, HIDE)
    assert not view().policy
    assert not view(hide={}).policy
    stream = App("shop").stream("orders", schema="id LONG, card STRING", rows="id > 3", hide=HIDE)
    assert texts(stream.policy) == ("id > 3", HIDE)


def test_sql_declares_the_same() -> None:
    app = read_script(
        'CREATE STREAM orders (tenant STRING, card STRING) WITH (rows = "tenant = caller.tenant", '
        "hide = (card = \"caller.role = 'billing'\"));\n"
        f'CREATE VIEW sales WITH (key = (tenant, city), rows = "{ROWS}", ledger = (n), '
        "ledger_rows = 'key.tenant = caller.tenant', "
        f"hide = (card = \"caller.role = 'billing'\")) AS {SQL};",
        "shop.sql",
    )
    assert texts(app.streams["orders"].policy) == ("tenant = caller.tenant", HIDE)
    assert texts(app.views["sales"].policy) == (ROWS, HIDE)
    assert texts(app.views["sales"].ledger_policy) == ("key.tenant = caller.tenant", {})


def test_a_ledger_has_the_views_policy_if_that_uses_key_columns_only() -> None:
    policy = view(rows=ROWS, hide={"n": "caller.boss"}, ledger=["n"]).ledger_policy
    assert policy.rows is not None
    assert policy.rows.struct == "key"
    assert texts(policy) == (ROWS, {"n": "caller.boss"})
    assert not view(ledger=["n"], hide=HIDE).ledger_policy


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"rows": "tennant = caller.tenant"}, "there is no column 'tennant'; did you mean"),
        ({"rows": "tenant = claler.tenant"}, "there is no column 'claler'"),
        ({"rows": "n + 1 > 2"}, "a policy cannot contain 'n + 1'"),
        ({"rows": "'x'"}, "is not a condition"),
        ({"rows": ""}, "has rows=''"),
        ({"rows": 3}, "has rows=3"),
        ({"hide": "card"}, "has hide='card'; write hide={"),
        ({"hide": {"card": True}}, "has hide={'card': True}"),
        ({"hide": {"tenant": "caller.a"}}, "hides the key column 'tenant'"),
        ({"hide": {"cart": "caller.a"}}, "hides 'cart', which is not one of its columns; did you"),
        ({"hide": {"card": "city = 'x'"}}, "hides 'card' by the column 'city' of a row"),
        ({"ledger_rows": "key.tenant = 'x'"}, "has ledger_rows but no ledger"),
        (
            {"ledger": ["n"], "rows": "card = caller.card"},
            "rows uses 'card', which a ledger's entries do not have; say who sees which entries "
            "with ledger_rows=",
        ),
        ({"ledger": ["n"], "ledger_rows": "key.n = 3"}, "'key.n', which is no key column"),
        ({"ledger": ["n"], "ledger_rows": "tenant = 'x'"}, "there is no column 'tenant'"),
    ],
)
def test_a_wrong_policy_is_refused_with_the_line_and_the_remedy(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(PipelineError) as caught:
        view(**options)
    assert problem in str(caught.value)
    assert caught.value.line


def test_the_types_of_a_stream_are_checked_at_once() -> None:
    with pytest.raises(PipelineError, match="mixes text and a number"):
        App("shop").stream("orders", schema="id LONG, tenant STRING", rows="id = tenant")


def test_a_view_whose_columns_are_unknown_is_checked_later() -> None:
    assert view(sql="SELECT * FROM orders", key=None, rows="anything = caller.x").policy
