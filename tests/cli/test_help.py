from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from millstream.cli.group import millstream

if TYPE_CHECKING:
    from tests.cli.conftest import Run

HEAVY = ["pyspark", "confluent_kafka", "pydantic", "httpx", "rich", "duckdb", "sqlglot", "msgspec"]


def test_help_imports_nothing_that_it_does_not_need() -> None:
    code = (
        "import sys; from millstream.cli.invoke import invoke; invoke(['--help']); "
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stderr.strip() == "[]"


@pytest.mark.parametrize("name", sorted(millstream.commands))
def test_every_command_has_help_with_an_example(run: Run, name: str) -> None:
    outcome = run(name, "--help")
    assert outcome.code == 0
    assert f"\n  millstream {name}" in outcome.out


def test_the_overview_lists_every_command(run: Run) -> None:
    out = run("--help").out
    assert all(f"\n  {name} " in out for name in millstream.commands)
    assert "..." not in out.partition("\n\n")[2]  # each says all that it does


def test_python_dash_m_is_the_same_command() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "millstream", "--version"], capture_output=True, text=True
    )
    assert answer.stdout.startswith("millstream ")
