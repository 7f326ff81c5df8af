from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.cli.status import problems_of
from millstream.home import Home

if TYPE_CHECKING:
    from tests.cli.conftest import Run

UP: dict[str, Any] = {name: {"pid": 1} for name in ("kafka", "collect", "analyze", "serve")}


def system(state: str = "running", **tiers: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: {"state": tiers.get(name, "up")} for name in ("collect", "log", "analyze", "serve")
    }
    found["analyze"]["views"] = {"by_city": {"state": state, "error": "out of luck"}}
    return {"views": [{"name": "by_city"}], "streams": [], "tiers": found}


def test_a_system_that_is_all_up_has_no_problems() -> None:
    assert problems_of(UP, system()) == []


def test_a_query_that_does_not_run_is_a_problem_with_its_error() -> None:
    assert problems_of(UP, system("restarting")) == ["view by_city is restarting: out of luck"]


def test_a_tier_that_is_missing_or_silent_is_a_problem() -> None:
    missing = {name: entry for name, entry in UP.items() if name != "collect"}
    assert problems_of(missing, system()) == ["collect is down"]
    assert "collect runs, but has not reported" in problems_of(UP, system(collect="down"))[0]
    assert problems_of(UP, system(log="down")) == ["kafka is down"]


def test_what_keeps_events_out_and_counts_that_are_off_are_problems() -> None:
    now = system()
    now["tiers"]["collect"] |= {
        "journal": {"broken": "disk full", "max_bytes": 10},
        "sources": [
            {"stream": "orders", "state": "retrying", "error": "refused"},
            {"stream": "clicks", "state": "connected"},
        ],
        "unaccounted": 3,
    }
    assert problems_of(UP, now) == [
        "the journal takes nothing: disk full",
        "the source of orders is retrying: refused",
        "3 accepted events are accounted for nowhere: see `millstream audit`",
    ]
    now["tiers"]["collect"] = {"state": "up", "journal": {"stored_bytes": 10, "max_bytes": 10}}
    assert "the journal is full" in problems_of(UP, now)[0]


def test_a_server_that_does_not_answer_is_a_problem() -> None:
    assert problems_of(UP, None) == ["no figures: serve does not answer"]


def test_a_cluster_elsewhere_is_no_problem() -> None:
    without = {name: entry for name, entry in UP.items() if name != "kafka"}
    assert problems_of(without, system()) == []


def test_half_a_system_is_shown_with_exit_code_1(run: Run, tmp_path: Path) -> None:
    Home(tmp_path / ".millstream").announce("kafka", bootstrap="127.0.0.1:1")
    outcome = run("status", "--json")
    assert outcome.code == 1
    answer = json.loads(outcome.out)
    assert answer["running"]["kafka"] == {"pid": os.getpid(), "bootstrap": "127.0.0.1:1"}
    assert answer["problems"] == ["collect is down", "analyze is down", "serve is down"]
    outcome = run("status")
    assert outcome.code == 1
    assert "127.0.0.1:1" in outcome.out
    assert "✗ serve is down" in outcome.out
