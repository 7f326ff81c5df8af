"""The OpenAPI document of a collector is valid, whatever the pipeline has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.official_rules import as_sent, openapi_mistakes, pipeline_with_everything
from tests.serve.logins import Keys

from millstream import App
from millstream.collect.http.openapi import openapi
from millstream.collect.settings import CollectSettings


def document(app: App, **collect: Any) -> dict[str, Any]:
    return as_sent(openapi(app, CollectSettings(**collect)))


@pytest.mark.parametrize("has_login", [False, True], ids=["open", "login"])
def test_the_document_is_valid(has_login: bool, tmp_path: Path) -> None:
    login = Keys(tmp_path).settings if has_login else {}
    described = document(pipeline_with_everything(), **login)
    assert openapi_mistakes(described) == []
    assert bool(described["security"]) is has_login


def test_the_document_of_an_empty_pipeline_is_valid() -> None:
    assert openapi_mistakes(document(App("empty"))) == []


def test_a_mistake_would_be_found() -> None:
    described = document(pipeline_with_everything())
    described["components"]["schemas"]["stream.orders"]["properties"]["tags"]["type"] = "texts"
    assert any("tags" in each for each in openapi_mistakes(described))
