"""A policy is no part of what a view's generation is computed from."""

from __future__ import annotations

import pytest

from millstream.analyze.planning.policy_text import without_policies

PLAIN = """
app = App("shop")
app.stream("orders", schema="tenant STRING")


@app.view(key=["tenant"])
def sales(orders):  # rows="not an option"
    return orders.select(rows("ä"), hide=3)
"""


@pytest.mark.parametrize(
    "text",
    [
        PLAIN.replace('key=["tenant"]', 'key=["tenant"], rows="tenant = caller.tenant"'),
        PLAIN.replace('key=["tenant"]', 'rows="tenant = caller.tenant", key=["tenant"]'),
        PLAIN.replace(
            'key=["tenant"]', 'rows="ä = caller.ä", hide={"x": "caller.y"}, key=["tenant"]'
        ),
        PLAIN.replace(
            'key=["tenant"]', 'key=["tenant"],\n    hide={\n  "x": "y"},\n    ledger_rows="z"'
        ),
        PLAIN.replace('STRING")', 'STRING", rows=TENANT)'),
    ],
)
def test_a_text_with_policies_is_the_same_as_without_them(text: str) -> None:
    assert text != PLAIN
    assert without_policies(text.encode()) == PLAIN.encode()


def test_all_else_stays() -> None:
    assert without_policies(PLAIN.encode()) == PLAIN.encode()
    assert without_policies(b"CREATE VIEW x;") == b"CREATE VIEW x;"
    assert without_policies(b"\x00") == b"\x00"
    only = 'app.view(rows="x")(function)'
    assert without_policies(only.encode()) == b"app.view()(function)"
