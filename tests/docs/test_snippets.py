"""The Python and SQL in every document is valid, and every whole pipeline loads."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.docs.pages import DOCUMENTS, name_of, snippets

from millstream.pipeline.load import load

SNIPPETS = [
    pytest.param(language, code, id=f"{name_of(document)}-{number}")
    for document in DOCUMENTS
    for number, (language, code) in enumerate(snippets(document.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize(("language", "code"), SNIPPETS)
def test_a_snippet_is_valid(language: str, code: str, tmp_path: Path) -> None:
    if language == "python":
        ast.parse(code)
        if "App(" not in code:
            return
    path = tmp_path / f"pipeline.{'py' if language == 'python' else 'sql'}"
    path.write_text(code, encoding="utf-8")
    assert load(path).streams
