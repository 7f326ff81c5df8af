"""docs/explanation/time.md: its pipelines load, and its pictures are up to date."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from scripts.time_pictures import FOLDER, PICTURES
from tests.docs.pages import read, snippets

from millstream.pipeline.load import load
from millstream.pipeline.trigger import parse_trigger

PAGE = read("docs/explanation/time.md")


@pytest.mark.parametrize(("language", "text"), snippets(PAGE))
def test_every_snippet_loads(tmp_path: Path, language: str, text: str) -> None:
    path = tmp_path / f"pipeline.{'py' if language == 'python' else 'sql'}"
    path.write_text(text, encoding="utf-8")
    assert len(load(path).views) == 2


def test_every_trigger_in_the_table_is_one() -> None:
    table = PAGE.partition("| `trigger` |")[2].partition("\n\n")[0]
    words = re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE)
    assert len({type(parse_trigger(each)) for each in words}) == len(words) == 5


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_shown_and_is_as_it_is_drawn(name: str) -> None:
    drawn = PICTURES[name]()
    ElementTree.fromstring(drawn)
    assert "prefers-color-scheme:dark" in drawn
    assert (FOLDER / name).read_text(encoding="utf-8") == drawn
    assert f"(../images/{name})" in PAGE
