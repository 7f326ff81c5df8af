"""The AsyncAPI document of a server is valid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.official_rules import as_sent, asyncapi_mistakes, pipeline_with_everything
from tests.serve.logins import Keys

from millstream.serve.description.asyncapi import describe
from millstream.serve.service import Server
from millstream.serve.settings import ServeSettings
from millstream.settings import Settings


def document(**serve: Any) -> dict[str, Any]:
    settings = Settings(serve=ServeSettings(**serve))
    return as_sent(describe(Server(pipeline_with_everything(), settings).context))


@pytest.mark.parametrize("has_login", [False, True], ids=["open", "login"])
def test_the_document_is_valid(has_login: bool, tmp_path: Path) -> None:
    assert asyncapi_mistakes(document(**(Keys(tmp_path).settings if has_login else {}))) == []


def test_a_mistake_would_be_found() -> None:
    described = document()
    described["operations"]["inform"]["action"] = "inform"
    described["components"]["schemas"]["Snapshot"]["properties"]["page"]["type"] = "number of pages"
    found = asyncapi_mistakes(described)
    for place in ("$.operations.inform", "Snapshot.properties.page"):
        assert any(place in each for each in found), found
