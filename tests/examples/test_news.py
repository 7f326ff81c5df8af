"""The news example: its pipeline in Python and SQL, and what its simulator knows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from examples.news.simulator import LINK_CHECKS, PAGE_VIEWS, SECTION_OF, status_of, trending
from pyspark.sql import SparkSession
from tests.end_to_end.true_rows import as_set

from millstream.pipeline.load import load
from millstream.simulation import Faults, Predicted, Simulation, iso_time, predict
from millstream.testing import run

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/news"
START = 1_763_300_040_000
SIMULATIONS = {each.stream: each for each in (PAGE_VIEWS, LINK_CHECKS)}


def predicted(simulation: Simulation, seed: int = 1) -> list[Predicted]:
    sent = simulation.sendings(seed=seed, count=600, start=START, span=1_800_000)
    return list(predict(sent))


def test_python_and_sql_declare_the_same_pipeline() -> None:
    python, sql = (load(EXAMPLE / f"pipeline.{kind}") for kind in ("py", "sql"))
    assert python.name == sql.name == "news"
    assert python.streams.keys() == sql.streams.keys()
    for stream in python.streams.values():
        for field in ("schema", "key", "event_time", "lateness", "delivery", "retention"):
            assert getattr(stream, field) == getattr(sql.streams[stream.name], field), field
    assert python.views.keys() == sql.views.keys()
    for view in python.views.values():
        for field in ("key", "keep", "inputs", "mode", "trigger", "accumulation", "ledger"):
            assert getattr(view, field) == getattr(sql.views[view.name], field), (view.name, field)
    assert python.queries.keys() == sql.queries.keys()
    for query in python.queries.values():
        assert query.sql.split() == sql.queries[query.name].sql.split()
        for field in ("parameters", "key", "views"):
            assert getattr(query, field) == getattr(sql.queries[query.name], field), query.name


@pytest.mark.parametrize("stream", SIMULATIONS)
def test_the_simulator_knows_the_streams_and_their_lateness(stream: str) -> None:
    declared, simulation = load(EXAMPLE / "pipeline.py").streams[stream], SIMULATIONS[stream]
    assert declared.event_time == simulation.time
    assert declared.lateness.total_seconds() * 1000 == simulation.lateness


@pytest.mark.parametrize("kind", ["py", "sql"])
def test_views_of_punctual_events_are_what_the_simulator_computes(
    kind: str, spark: SparkSession
) -> None:
    sent = {
        name: each.sendings(seed=2, count=40, start=START, span=300_000, faults=Faults())
        for name, each in SIMULATIONS.items()
    }
    views = run(
        EXAMPLE / f"pipeline.{kind}", {name: [e.event for e in sent[name]] for name in sent}
    )
    minutes = PAGE_VIEWS.truth(list(predict(sent["page_views"])))["views"]["article_minutes"]
    for row in minutes:
        del row["_state"]
    assert as_set(views["article_minutes"]) == as_set(minutes)
    links = LINK_CHECKS.truth(list(predict(sent["link_checks"])))["views"]["links"]
    assert as_set(views["links"]) == as_set(links)


@pytest.mark.parametrize("stream", SIMULATIONS)
def test_the_same_seed_has_the_same_truth_and_another_one_does_not(stream: str) -> None:
    simulation = SIMULATIONS[stream]
    first, same, other = (simulation.truth(predicted(simulation, seed)) for seed in (1, 1, 2))
    assert first == same != other


def test_every_page_view_is_counted_once_or_late() -> None:
    truth = PAGE_VIEWS.truth(predicted(PAGE_VIEWS))
    rows = truth["views"]["article_minutes"]
    assert sum(row["views"] for row in rows) == truth["logged"] - len(truth["late"])
    assert all(row["section"] == SECTION_OF[row["article"]] for row in rows)
    assert {row["_state"] for row in rows} >= {"final", "corrected"}


def test_other_articles_trend_after_five_minutes() -> None:
    views: dict[int, Counter[str]] = {}
    for each in predicted(PAGE_VIEWS):
        period = views.setdefault(each.sending.at // 300_000, Counter())
        period[each.sending.event["article"]] += 1
    tops = [frozenset(name for name, _ in views[at].most_common(2)) for at in sorted(views)[1:6]]
    assert len(set(tops)) > 2


def test_trending_compares_the_last_five_minutes_with_the_five_before() -> None:
    def row(minute: int, article: str, views: int) -> dict[str, Any]:
        start = {"start": iso_time(START + minute * 60_000)}
        return {"window": start, "article": article, "views": views}

    one, other = "a-comet-returns", "how-swifts-sleep"
    rows = [row(0, one, 50), row(5, one, 3), row(6, one, 4), row(10, other, 9), row(7, other, 1)]
    science = "science"
    assert trending(rows) == [
        {"article": other, "section": science, "views": 10, "earlier": 0},
        {"article": one, "section": science, "views": 4, "earlier": 3},
    ]
    assert trending(rows, n=1) == trending(rows)[:1]
    assert trending(rows, section="sport") == []


def test_a_link_has_one_status_at_a_time() -> None:
    url = "https://source-1.example/a-comet-returns"
    assert status_of(url, START) == status_of(url, START)
    statuses = Counter(status_of(url, START + n * 60_000) for n in range(1_000))
    broken = sum(count for status, count in statuses.items() if status >= 400)
    assert 0.1 < broken / 1_000 < 0.2


def test_alerts_are_the_moments_at_which_links_break() -> None:
    truth = LINK_CHECKS.truth(predicted(LINK_CHECKS))
    alerts: list[dict[str, Any]] = truth["alerts"]
    failures = {row["url"]: row["failures"] for row in truth["views"]["links"]}
    times = Counter(alert["url"] for alert in alerts)
    assert max(times.values()) > 1
    assert times.keys() == {url for url, count in failures.items() if count}
    assert all(times[url] <= failures[url] for url in times)
    assert all(alert["status"] >= 400 for alert in alerts)


def test_a_check_that_comes_late_does_not_break_a_link_that_works_again() -> None:
    def check(at: int, status: int) -> dict[str, Any]:
        return {"url": "u", "article": "a", "status": status, "at": at}

    sent = LINK_CHECKS.sendings(seed=1, count=3, start=START, span=1_000, faults=Faults())
    events = [check(START, 200), check(START + 20, 200), check(START + 10, 404)]
    late = [
        Predicted(replace(each, event=event, at=event["at"]), "logged")
        for each, event in zip(sent, events, strict=True)
    ]
    assert LINK_CHECKS.truth(late)["alerts"] == []


def test_the_truth_of_both_streams_is_written(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.news.simulator", "--events", "50"]
    flags = ["--url", "http://127.0.0.1:9", "--truth", str(tmp_path / "truth.json")]
    outcome = subprocess.run(
        [*command, *flags], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert outcome.returncode == 1
    assert "cannot send to http://127.0.0.1:9/v1/streams/" in outcome.stderr
    truth = json.loads((tmp_path / "truth.json").read_text())
    assert truth.keys() == SIMULATIONS.keys()
    assert truth["page_views"]["logged"] > truth["link_checks"]["logged"] > 0
