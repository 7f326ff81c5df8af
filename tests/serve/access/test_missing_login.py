"""Policies that need claims where nobody logs in."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from tests.serve.logins import Keys
from tests.serve.pipeline import SECONDS, Pipeline, declare

from millstream import App
from millstream.log.settings import LogSettings
from millstream.serve.access.missing_login import warn_of_missing_login
from millstream.serve.settings import ServeSettings


def shop(rows: str | None = None, hide: dict[str, str] | None = None) -> App:
    app = App("shop")
    app.stream("orders", schema="id LONG, tenant STRING, total LONG, card STRING")
    sql = "SELECT tenant, id, total, card FROM orders"
    app.view("order_list", key=["tenant", "id"], sql=sql, rows=rows, hide=hide)
    return app


def test_a_condition_that_needs_a_claim_is_named_with_what_to_do() -> None:
    by_row = shop(rows="tenant = caller.tenant")
    by_column = shop(hide={"card": "caller.role = 'billing'"})
    for app in (by_row, by_column):
        warning = warn_of_missing_login(app, ServeSettings())
        assert "view order_list need claims" in warning
        assert "serve.auth" in warning
        assert "millstream keys create NAME --claim" in warning


def test_policies_of_streams_are_named_too() -> None:
    app = shop()
    app.stream("payments", schema="id LONG, tenant STRING", rows="tenant = caller.tenant")
    assert "the policies of stream payments need" in warn_of_missing_login(app, ServeSettings())


def test_there_is_nothing_to_say_with_a_login_or_without_claims(tmp_path: Path) -> None:
    settings = ServeSettings(**Keys(tmp_path).settings)
    assert warn_of_missing_login(shop(rows="tenant = caller.tenant"), settings) == ""
    assert warn_of_missing_login(shop(rows="total < 100"), ServeSettings()) == ""
    assert warn_of_missing_login(shop(), ServeSettings()) == ""


async def test_the_log_and_the_systems_state_have_the_warning(
    log_settings: LogSettings, app_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = declare(app_name)
    app.stream("payments", schema="id LONG, tenant STRING", rows="tenant = caller.tenant")
    async with (
        Pipeline(app_name, log_settings, app).server() as server,
        httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as http,
    ):
        (warning,) = (await http.get("/v1/system")).json()["warnings"]
    assert "stream payments need claims" in warning
    assert [each.levelname for each in caplog.records if each.getMessage() == warning] == [
        "WARNING"
    ]
