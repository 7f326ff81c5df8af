from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.cli.collecting import collector
from tests.process_failures import KAFKA_DIES
from tests.web.certificate_authority import Authority

from millstream.cli.commands.status import problems_of
from millstream.collect.settings import CollectSettings
from millstream.log.settings import LogSettings
from millstream.runtime.failing_processes import publish_failures
from millstream.runtime.home import Home
from millstream.supervise.status_tables import (
    console,
    lag_text,
    missing_events,
    rebuilds_table,
    warning_lines,
)
from millstream.values.report import BrokenEvent, LostEvents, RebuildStatus, ViewCounts

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


def test_a_named_query_that_cannot_run_is_a_problem_with_its_error() -> None:
    queries = [{"name": "top", "error": "there is no column town"}, {"name": "b", "error": None}]
    found = problems_of(UP, {**system(), "queries": queries})
    assert found == ["query top cannot run: there is no column town"]


def test_rows_that_may_be_wrong_are_a_problem_though_the_query_runs() -> None:
    now = system()
    now["tiers"]["analyze"]["views"]["by_city"] |= {"warning": "12 events are not in it"}
    assert problems_of(UP, now) == ["view by_city: 12 events are not in it"]


def test_a_policy_that_does_not_fit_is_a_problem() -> None:
    now = system()
    now["views"][0]["warning"] = "nobody sees a row of view by_city"
    assert problems_of(UP, now) == ["view by_city: nobody sees a row of view by_city"]


def test_a_warning_about_the_settings_is_shown_and_no_problem() -> None:
    now = {**system(), "warnings": ["nobody has claims"]}
    assert problems_of(UP, now) == []
    assert [line.plain for line in warning_lines(now)] == ["! nobody has claims"]


def test_what_a_view_sheds_is_shown_and_no_problem() -> None:
    now = system()
    view = now["tiers"]["analyze"]["views"]["by_city"]
    view |= {"shed": 4000, "share": 0.25}
    assert problems_of(UP, now) == []
    assert missing_events(view).plain == "4,000 shed; takes 25.0% of its input to keep up"


def test_a_view_that_falls_behind_is_a_problem() -> None:
    now = system()
    view = now["tiers"]["analyze"]["views"]["by_city"]
    view |= {"behind": 4000, "behind_s": 31.2, "trend": "growing"}
    assert problems_of(UP, now) == ["view by_city falls behind: 4,000 events, 31 s, and growing"]
    assert lag_text(view).plain == "4,000 · 31.2 s ▲"
    view |= {"trend": "shrinking", "catch_up_s": 12.0}
    assert problems_of(UP, now) == []
    assert lag_text(view).plain == "4,000 · 31.2 s ▼ 12 s"
    assert lag_text({"behind": 0}).plain == "0"
    assert lag_text({}).plain == "–"


def test_a_rebuild_is_shown_while_it_runs_and_when_it_has_ended(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = system()
    view = now["tiers"]["analyze"]["views"]["by_city"]

    def shown(rebuild: RebuildStatus) -> str:
        view["rebuild"] = msgspec.to_builtins(rebuild)
        console().print(rebuilds_table(now), width=200)
        return " ".join(capsys.readouterr().out.split())

    running = RebuildStatus("replaying", "r", done=250, total=1000, started_at=1_000, left_s=90.0)
    told = shown(running)
    assert (
        "by_city replaying 250 of 1,000 1.5 min all 1970-01-01 00:00:01Z it was requested" in told
    )
    assert "the old rows are served until it is ready" in told
    told = shown(msgspec.structs.replace(running, state="done", ended_at=9_000, since=2_000))
    assert "from 1970-01-01 00:00:02Z on" in told
    assert "served in a new epoch since 1970-01-01 00:00:09Z" in told
    assert problems_of(UP, now) == []
    told = shown(RebuildStatus("failed", "r", error="no room"))
    assert "no room" in told
    assert problems_of(UP, now) == [], "who asked for it was told"
    assert "the pipeline changed" in shown(RebuildStatus("failed", error="no room"))
    assert problems_of(UP, now) == [
        "view by_city is served as it was before the pipeline changed, because it "
        "cannot be rebuilt: no room"
    ]


def test_what_a_view_goes_on_without_is_shown() -> None:
    counts = msgspec.to_builtins(
        ViewCounts(
            broken=2,
            newest_broken=BrokenEvent("t", 0, 7, "no number", 1),
            lost=3,
            losses=[LostEvents("t", 1, 5, 8, 1)],
        )
    )
    assert missing_events(counts).plain == (
        "2 set aside, the newest t/0/7: no number; 3 lost to retention: t/1 5-7"
    )
    assert missing_events({}).plain == ""


def test_a_tier_that_is_missing_or_silent_is_a_problem() -> None:
    missing = {name: entry for name, entry in UP.items() if name != "collect"}
    assert problems_of(missing, system()) == ["collect is down"]
    assert "collect has not reported" in problems_of(UP, system(collect="down"))[0]
    hung = system(collect="down")
    hung["now"] = "2026-11-18T00:01:00.000Z"
    hung["tiers"]["collect"]["reported_at"] = "2026-11-18T00:00:20.500Z"
    (problem,) = problems_of(UP, hung)
    assert problem.startswith("collect has not reported since 2026-11-18T00:00:20Z (39.5 s ago): ")
    assert problems_of(UP, system(log="down")) == ["kafka is down"]


def test_what_keeps_events_out_and_counts_that_are_off_are_problems() -> None:
    now = system()
    now["tiers"]["collect"] |= {
        "journal": {"broken": "disk full", "max_bytes": 10},
        "sources": [
            {"stream": "orders", "state": "retrying", "error": "refused"},
            {"stream": "clicks", "state": "connected", "warning": "the broker has forgotten"},
        ],
        "unaccounted": 3,
    }
    assert problems_of(UP, now) == [
        "the journal accepts nothing: disk full",
        "the source of orders is retrying: refused",
        "the source of clicks: the broker has forgotten",
        "3 accepted events are not accounted for: see `millstream audit`",
    ]
    now["tiers"]["collect"] = {"state": "up", "journal": {"stored_bytes": 10, "max_bytes": 10}}
    assert "the journal is full" in problems_of(UP, now)[0]


def test_rows_that_spark_left_out_are_a_problem_with_its_remedy() -> None:
    now = system()
    now["tiers"]["analyze"]["views"]["by_city"]["dropped"] = 3
    (problem,) = problems_of(UP, now)
    assert "by_city lacks at least 3 rows" in problem
    assert "`millstream rebuild by_city`" in problem


def test_events_that_nobody_looked_at_in_time_are_a_problem() -> None:
    now = system()
    now["tiers"]["analyze"]["streams"] = {"clicks": {"late": 3, "lost": 2}}
    (problem,) = problems_of(UP, now)
    assert problem == "2 events of clicks were deleted by retention before they were checked"


def test_a_watermark_that_may_stand_still_is_a_problem_with_the_reason() -> None:
    now = system()
    now["tiers"]["analyze"]["streams"] = {"clicks": {"error": "there is no topic"}}
    assert problems_of(UP, now) == ["the watermark of clicks may not advance: there is no topic"]


def test_a_server_that_does_not_answer_is_a_problem() -> None:
    assert problems_of(UP, None) == ["no metrics: serve does not answer"]


def test_a_cluster_elsewhere_is_no_problem() -> None:
    without = {name: entry for name, entry in UP.items() if name != "kafka"}
    assert problems_of(without, system()) == []


def test_processes_that_keep_dying_are_named_even_if_no_other_runs(
    run: Run, tmp_path: Path
) -> None:
    home = Home(tmp_path / ".millstream")
    home.announce_run()
    publish_failures(home, [KAFKA_DIES])
    outcome = run("status", "--json")
    assert outcome.code == 1
    answer = json.loads(outcome.out)
    words = "kafka keeps dying: 7 times, last at 2026-11-18T00:00:00Z by exit code 1"
    assert answer["problems"][0] == words
    assert answer["failing"][0]["lines"] == ["error: no room"]
    outcome = run("status")
    assert outcome.code == 1
    assert f"✗ {words}" in outcome.out
    assert "| error: no room" in outcome.out


def test_half_a_system_is_shown_with_exit_code_1(run: Run, tmp_path: Path) -> None:
    Home(tmp_path / ".millstream").announce("kafka", bootstrap="127.0.0.1:1")
    outcome = run("status", "--json")
    assert outcome.code == 1
    answer = json.loads(outcome.out)
    entry = answer["running"]["kafka"]
    assert (entry["pid"], entry["bootstrap"]) == (os.getpid(), "127.0.0.1:1")
    assert answer["problems"] == ["collect is down", "analyze is down", "serve is down"]
    outcome = run("status")
    assert outcome.code == 1
    assert "127.0.0.1:1" in outcome.out
    assert "✗ serve is down" in outcome.out


def test_a_collector_with_a_private_certificate_is_asked_by_its_authority(
    run: Run, app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    authority = Authority(tmp_path, "ca")
    certificate, key = authority.issue("server")
    settings = CollectSettings(port=0, tls_certificate=certificate, tls_key=key)
    home = tmp_path / ".millstream"
    with collector(app_name, log_settings, home, "id LONG", settings):
        (unknown,) = json.loads(run("status", "--json").out)["unknown"]
        assert "whether collect accepts events is not known" in unknown
        assert "certificate verify failed" in unknown
        assert "--ca FILE" in unknown
        assert f"? {unknown[:40]}" in run("status").out
        answer = json.loads(run("status", "--json", "--ca", str(authority.file)).out)
        assert answer["unknown"] == []
        assert answer["problems"] == ["analyze is down", "serve is down"]
        outcome = run("status", "--ca", str(tmp_path / "none.pem"))
        assert "cannot use the certificates in" in outcome.err


def test_a_collector_that_does_not_answer_is_said_to_be_unknown(run: Run, tmp_path: Path) -> None:
    Home(tmp_path / ".millstream").announce("collect", url="http://127.0.0.1:1")
    answer = json.loads(run("status", "--json").out)
    assert answer["problems"] == ["analyze is down", "serve is down"]
    (unknown,) = answer["unknown"]
    assert "127.0.0.1:1/health/ready: " in unknown
    assert "refused" in unknown
