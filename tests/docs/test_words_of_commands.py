"""The guides quote the words that commands show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, read

COMMANDS, VERIFY = ROOT / "src/millstream/cli", ROOT / "src/millstream/analyze/verify"


def _table(page: str, head: str) -> list[str]:
    """The first column of a table."""
    rows = read(page).partition(f"{head}\n|---|---|\n")[2].partition("\n\n")[0]
    return [row.split("|")[1].strip() for row in rows.splitlines()]


def _source(*folders: Path) -> str:
    return "".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))


@pytest.mark.parametrize("words", _table("docs/guides/dead_letters.md", "| words | means |"))
def test_the_guide_quotes_trace(words: str) -> None:
    source = _source(COMMANDS / "trace")
    assert all(part.strip(" ,") in source for part in words.split("…"))


@pytest.mark.parametrize("words", _table("docs/guides/checking.md", "| found | means |"))
def test_the_guide_quotes_verify(words: str) -> None:
    source = _source(COMMANDS / "views", VERIFY)
    assert all(f'"{kind}"' in source for kind in words.split(", "))


def test_the_guide_has_every_column_of_audit() -> None:
    source = _source(COMMANDS / "audit")
    tables = re.findall(r"^(?:stream|view) .*$", read("docs/guides/checking.md"), re.MULTILINE)
    columns = {each.strip("=+ ") for table in tables for each in re.split(r" {2,}", table)}
    assert len(columns) > 20
    assert not {column for column in columns if column not in source}
