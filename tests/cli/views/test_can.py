"""`millstream can`: yes or no, with the rule that decides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.serve.pipeline import Pipeline

from millstream.pipeline.load import load
from millstream.values.view_description import ViewColumn

if TYPE_CHECKING:
    from tests.cli.conftest import Run

    from millstream.log.settings import LogSettings

PIPELINE = """
from millstream import App

app = App("{name}")
app.stream("orders", schema="id LONG, tenant STRING, card STRING", rows="tenant = caller.tenant")
app.view(
    "sales",
    key=["tenant", "id"],
    sql="SELECT tenant, id, owner, card, n FROM orders",
    rows="owner = caller.name OR caller.role = 'support'",
    hide={{"card": "caller.role = 'billing'"}},
    ledger=["n"],
    ledger_rows="key.tenant = caller.tenant",
)
app.view("open", sql="SELECT id FROM orders")
"""


@pytest.fixture
def can(run: Run, tmp_path: Path, log_settings: LogSettings, app_name: str) -> Any:
    file = tmp_path / "shop.py"
    file.write_text(PIPELINE.format(name=app_name))
    pipeline = Pipeline(app_name, log_settings, load(file))
    types = {"tenant": "string", "id": "bigint", "owner": "string", "card": "string", "n": "bigint"}
    columns = [ViewColumn(name, type_) for name, type_ in types.items()]
    pipeline.describe("sales", ["tenant", "id"], columns, ledger=["n"])
    pipeline.describe("open", None, columns[1:2])
    for owner in ("nobody", "ada"):
        pipeline.put("sales", ["acme", 1], {"tenant": "acme", "id": 1, "owner": owner}, 1)
    pipeline.flush()

    def ask(*words: str, **claims: Any) -> Any:
        given = ("--claims", json.dumps(claims)) if claims else ()
        where = ("--pipeline", str(file), "--set", f"log.bootstrap={log_settings.bootstrap}")
        return run("can", *words, *given, *where)

    return ask


def test_the_rule_that_decides_is_named(can: Any) -> None:
    yes = can("x", "read", "sales", '["acme", 1]', name="ada")
    assert yes.code == 0
    assert "yes: caller 'x' may read row [\"acme\", 1] of sales" in yes.out
    assert "rows: owner = caller.name OR caller.role = 'support', which is \"owner\" = 'ada'" in (
        yes.out
    )
    assert "hidden columns: card" in yes.out
    no = can("x", "read", "sales", '["acme", 1]', name="bob")
    assert no.code == 1
    assert "no: caller 'x' may not read row" in no.out
    assert "does not hold" in no.out
    support = can("x", "query", "sales", role="support")
    assert support.code == 0
    assert "holds for every row" in support.out
    assert can("x", "read", "sales", other=1).code == 1


def test_streams_ledgers_and_views_without_a_policy_are_answered_too(can: Any) -> None:
    assert can("x", "read", "orders", tenant="acme").code == 0
    assert can("x", "read", "orders", role="support").code == 1
    assert can("x", "read", "ledger/sales", '["acme", 1]', tenant="acme").code == 0
    assert can("x", "read", "ledger/sales", '["other", 1]', tenant="acme").code == 1
    free = json.loads(can("x", "read", "open", "--json", a=1).out)
    assert (free["allowed"], free["rule"]) == (True, "no policy")


def test_a_key_needs_the_right_first(can: Any, run: Run) -> None:
    run("keys", "create", "shop", "--write", "orders")
    answer = can("shop", "read", "sales")
    assert answer.code == 1
    assert "right: it has no right read:sales" in answer.out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("nokey", "read", "sales"), "there is no key 'nokey'"),
        (("x", "read", "sale", "--claims", "{}"), "did you mean 'sales'"),
        (("x", "read", "sales", "--claims", "[1]"), "is no JSON object"),
        (("x", "read", "ledger/open", "--claims", '{"a": 1}'), "has no ledger"),
        (("x", "read", "sales", "k", "--claims", '{"name": "a"}'), "is not of the columns"),
        (("x", "read", "sales", '["a", 9]', "--claims", '{"name": "a"}'), "has no row with"),
        (("x", "read", "orders", "k", "--claims", '{"tenant": "a"}'), "has no key"),
    ],
)
def test_a_wrong_question_is_explained(can: Any, words: tuple[str, ...], problem: str) -> None:
    answer = can(*words)
    assert answer.code == 1
    assert problem in answer.err
