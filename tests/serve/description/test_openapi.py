"""The OpenAPI document of a server is valid, whatever the pipeline has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.official_rules import as_sent, openapi_mistakes, pipeline_with_everything
from tests.serve.logins import Keys

from millstream import App
from millstream.serve.description.openapi import describe
from millstream.serve.service import Server
from millstream.serve.settings import ServeSettings
from millstream.settings import Settings
from millstream.web.auth.caller import ANYBODY, Caller
from millstream.web.auth.rights import EVERYTHING

BILLING = Caller("key", "billing", EVERYTHING, claims={"role": "billing", "tenant": "acme"})


def document(app: App, caller: Caller = ANYBODY, **serve: Any) -> dict[str, Any]:
    context = Server(app, Settings(serve=ServeSettings(**serve))).context
    return as_sent(describe(context, caller))


@pytest.mark.parametrize("caller", [ANYBODY, BILLING], ids=["no claims", "claims"])
@pytest.mark.parametrize("has_login", [False, True], ids=["open", "login"])
def test_the_document_is_valid(caller: Caller, has_login: bool, tmp_path: Path) -> None:
    login = Keys(tmp_path).settings if has_login else {}
    described = document(pipeline_with_everything(), caller, **login)
    assert openapi_mistakes(described) == []
    paths = {"/v1/queries/largest/changes", "/v1/views/per_minute/ledger", "/v1/groups/{name}"}
    assert paths <= described["paths"].keys()
    assert ("security" in described) is has_login
    columns = described["components"]["schemas"]["stream.orders"]["properties"]
    assert ("card" in columns) is (caller is BILLING)


def test_the_document_of_an_empty_pipeline_is_valid() -> None:
    assert openapi_mistakes(document(App("empty"))) == []


def test_a_mistake_would_be_found() -> None:
    described = document(pipeline_with_everything())
    call = described["paths"]["/v1/queries/largest"]["get"]
    call["parameters"].append({**call["parameters"][0], "description": "once more"})
    del described["paths"]["/v1/views"]["get"]["responses"]["200"]["description"]
    described["components"]["schemas"]["Snapshot"]["properties"]["page"]["type"] = "number of pages"
    found = openapi_mistakes(described)
    for place in ("Duplicate parameter", "/v1/views", "properties.page.type"):
        assert any(place in each for each in found), found
