"""docs/guides/shedding.md: its pipelines load, and their views may shed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from tests.docs.pages import read, snippets

from millstream.pipeline.load import load

PAGE = read("docs/guides/shedding.md")


@pytest.mark.parametrize(("language", "text"), snippets(PAGE))
def test_every_snippet_loads(tmp_path: Path, language: str, text: str) -> None:
    path = tmp_path / f"pipeline.{'py' if language == 'python' else 'sql'}"
    path.write_text(text, encoding="utf-8")
    (view,) = load(path).views.values()
    assert view.sheds_after == timedelta(seconds=30)
