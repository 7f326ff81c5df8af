"""docs/reference/sources.md has every kind of source and every option, and its snippets load."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
from tests.docs.pages import anchor, read, snippets

from millstream.connectors import SOURCES, SourceDescription
from millstream.pipeline.load import load

PAGE = read("docs/reference/sources.md")
SNIPPETS = snippets(PAGE)


def loaded(folder: Path, language: str, text: str) -> list[SourceDescription]:
    """The sources of a snippet: a pipeline, or one source by itself."""
    if language == "python" and "app.stream" not in text:
        text = (
            'import os\nfrom millstream import *\napp = App("shop")\n'
            f'app.stream("s", schema="id LONG", source={text.strip()})\n'
        )
    path = folder / f"pipeline.{'py' if language == 'python' else 'sql'}"
    path.write_text(text, encoding="utf-8")
    return [each.source for each in load(path).streams.values() if each.source is not None]


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in re.findall(r"os\.environ\[[\"'](\w+)", PAGE):
        monkeypatch.setenv(name, "x")


@pytest.mark.parametrize("language", ["python", "sql"])
def test_every_snippet_loads_and_every_kind_has_one(language: str, tmp_path: Path) -> None:
    texts = [text for written, text in SNIPPETS if written == language]
    kinds = {type(source) for text in texts for source in loaded(tmp_path, language, text)}
    assert kinds == set(SOURCES)


@pytest.mark.parametrize("kind", SOURCES, ids=[source.kind for source in SOURCES])
def test_every_kind_is_in_the_table_and_all_its_options_in_its_section(
    kind: type[SourceDescription],
) -> None:
    row = re.search(rf"^\| \[`{kind.__name__}`\]\(#([\w-]+)\) \|", PAGE, re.MULTILINE)
    assert row
    [section] = [
        section for section in PAGE.split("\n## ")[1:] if anchor(section.splitlines()[0]) == row[1]
    ]
    for option in fields(kind):  # type: ignore[arg-type]
        if option.default is not MISSING or option.default_factory is not MISSING:
            assert re.search(rf"`[^`]*\b{option.name}\b[^`]*`", section), option.name
