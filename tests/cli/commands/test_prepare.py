from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.runtime.jars import cache_folder

pytestmark = pytest.mark.java

if TYPE_CHECKING:
    from tests.cli.conftest import Run


def test_what_is_there_already_is_left_alone(run: Run) -> None:
    outcome = run("prepare")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")


def test_archives_that_cannot_be_made_are_told_and_are_no_failure(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "jars").symlink_to(cache_folder())
    (tmp_path / "classes").touch()
    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path))
    outcome = run("prepare")
    assert outcome.code == 0
    assert "cannot create them: " in outcome.err
    assert "Kafka and Spark start without" in outcome.err


def test_jars_alone_can_be_had(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "jars").symlink_to(cache_folder())
    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path))
    outcome = run("prepare", "--jars-only")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
    assert not (tmp_path / "classes").exists()
