"""What docs/shedding.md shows: pipelines that load, and may shed."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from millstream.pipeline.load import load

PAGE = (Path(__file__).parent.parent / "docs" / "shedding.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("language", "text"), re.findall(r"```(python|sql)\n(.*?)```", PAGE, re.DOTALL)
)
def test_every_snippet_loads(tmp_path: Path, language: str, text: str) -> None:
    path = tmp_path / f"pipeline.{'py' if language == 'python' else 'sql'}"
    path.write_text(text, encoding="utf-8")
    (view,) = load(path).views.values()
    assert view.sheds_after == timedelta(seconds=30)
