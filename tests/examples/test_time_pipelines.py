"""The clicks, riders and traffic pipelines, in Python and in SQL, over punctual events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from examples.clicks import simulator as clicks
from examples.riders import simulator as riders
from examples.traffic import simulator as traffic
from pyspark.sql import SparkSession

from millstream.pipeline.load import load
from millstream.simulation import Faults, predict
from millstream.testing import run

EXAMPLES = Path(__file__).parents[2] / "examples"
START = 1_763_300_040_000
SIMULATIONS = {
    "clicks": clicks.SIMULATION,
    "riders": riders.SIMULATION,
    "traffic": traffic.SIMULATION,
}


@pytest.mark.parametrize("name", SIMULATIONS)
def test_python_and_sql_declare_the_same_pipeline(name: str) -> None:
    python, sql = (load(EXAMPLES / name / f"pipeline.{kind}") for kind in ("py", "sql"))
    (ours,), (theirs,) = python.streams.values(), sql.streams.values()
    for field in ("name", "schema", "key", "event_time", "lateness", "ahead", "delivery", "policy"):
        assert getattr(ours, field) == getattr(theirs, field), field
    assert python.name == sql.name == name
    assert python.views.keys() == sql.views.keys()
    for view in python.views.values():
        other = sql.views[view.name]
        for field in (
            "key",
            "keep",
            "inputs",
            "mode",
            "trigger",
            "accumulation",
            "ledger",
            "policy",
        ):
            assert getattr(view, field) == getattr(other, field), (view.name, field)


@pytest.mark.parametrize("name", SIMULATIONS)
def test_the_simulator_knows_the_pipelines_lateness(name: str) -> None:
    (stream,) = load(EXAMPLES / name / "pipeline.py").streams.values()
    simulation = SIMULATIONS[name]
    assert (stream.name, stream.event_time) == (simulation.stream, simulation.time)
    assert stream.lateness.total_seconds() * 1000 == simulation.lateness


@pytest.mark.parametrize("kind", ["py", "sql"])
@pytest.mark.parametrize("name", SIMULATIONS)
def test_views_of_punctual_events_are_what_the_simulator_computes(
    name: str, kind: str, spark: SparkSession
) -> None:
    simulation = SIMULATIONS[name]
    sent = simulation.sendings(seed=2, count=20, start=START, span=120_000, faults=Faults())
    views = run(
        EXAMPLES / name / f"pipeline.{kind}", {simulation.stream: [each.event for each in sent]}
    )
    truth = simulation.truth(list(predict(sent)))
    for view in truth["views"]:
        expected = list(_plain(truth["views"][view]))
        assert sorted(map(str, _plain(views[view]))) == sorted(map(str, expected))
        assert expected or view == "each_hundred"


def _plain(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        yield {name: row[name] for name in sorted(row) if name != "_state"}
