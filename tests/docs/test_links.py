"""Every link in a document leads to a file and a heading that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.pages import DOCS, DOCUMENTS, ROOT, anchor, headings, name_of, without_code

_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_link_leads_to_a_file_and_a_heading(document: Path) -> None:
    missing = []
    for target, heading in _LINK.findall(without_code(document.read_text(encoding="utf-8"))):
        file = document.parent / target if target else document
        if not file.exists():
            missing.append(target)
        elif heading and heading not in map(anchor, headings(file.read_text(encoding="utf-8"))):
            missing.append(f"{target}#{heading}")
    assert not missing


def test_the_index_lists_every_page_once() -> None:
    index = DOCS / "README.md"
    links = _LINK.findall(index.read_text(encoding="utf-8"))
    listed = [(DOCS / target).resolve() for target, _ in links]
    pages = {page for page in DOCS.rglob("*.md") if page != index and "decisions" not in page.parts}
    records = DOCS / "explanation/decisions/README.md"
    examples = (ROOT / "examples").glob("*/README.md")
    assert sorted(listed) == sorted({*pages, records, *examples})
