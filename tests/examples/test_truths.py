"""The simulators compute consistent true results."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from examples.clicks import simulator as clicks
from examples.riders import simulator as riders
from examples.traffic import simulator as traffic

from millstream.simulation import Predicted, Simulation, predict, with_outcome

ROOT = Path(__file__).parents[2]
START = 1_763_300_040_000  # a full minute
SIMULATIONS = {
    "clicks": clicks.SIMULATION,
    "riders": riders.SIMULATION,
    "traffic": traffic.SIMULATION,
}


def predicted(simulation: Simulation, seed: int = 1) -> list[Predicted]:
    sent = simulation.sendings(seed=seed, count=600, start=START, span=2_700_000)
    return list(predict(sent))


@pytest.fixture(scope="module")
def truths() -> dict[str, dict[str, Any]]:
    return {name: each.truth(predicted(each)) for name, each in SIMULATIONS.items()}


@pytest.mark.parametrize("name", SIMULATIONS)
def test_the_same_seed_has_the_same_truth_and_another_one_does_not(
    name: str, truths: dict[str, dict[str, Any]]
) -> None:
    simulation = SIMULATIONS[name]
    same, other = (simulation.truth(predicted(simulation, seed)) for seed in (1, 2))
    assert truths[name] == same != other


@pytest.mark.parametrize("name", SIMULATIONS)
def test_every_fault_makes_a_difference_to_the_truth(
    name: str, truths: dict[str, dict[str, Any]]
) -> None:
    truth = truths[name]
    assert truth["duplicates"] > 5
    reasons = Counter(entry["reason"] for entry in truth["late"].values())
    assert reasons["late"] > 5
    assert reasons["future"] > 0
    states = Counter(row["_state"] for row in next(iter(truth["views"].values())))
    assert states.keys() == {"final", "corrected", "final or corrected"}


def test_the_amount_for_clicks_is_the_logged_clicks_less_the_late_ones() -> None:
    truth = clicks.truth(predicted(clicks.SIMULATION))
    counted = truth["logged"] - len(truth["late"])
    assert sum(truth["ledger"]["clicks_per_minute"].values()) == counted
    for view in truth["views"].values():
        assert sum(row["clicks"] for row in view) == counted


def test_the_ledgers_reasons_are_the_late_events_of_corrected_rows() -> None:
    sent = predicted(clicks.SIMULATION)
    truth = clicks.truth(sent)
    stragglers = {each.sending.id for each in sent if each.sending.straggler}
    corrected = [row for row in truth["views"]["clicks_per_minute"] if row["_state"] == "corrected"]
    assert len(truth["corrected_by"]) == len(corrected) > 0
    reasons = {name for each in truth["corrected_by"] for name in each["ids"]}
    assert reasons
    assert reasons <= stragglers - truth["late"].keys()


def test_a_ride_may_be_late_for_some_of_its_half_hours_and_count_in_others(
    truths: dict[str, dict[str, Any]],
) -> None:
    truth = truths["riders"]
    missed = [
        len(entry["views"]["speed_by_age"])
        for entry in truth["late"].values()
        if "speed_by_age" in entry.get("views", {})
    ]
    assert any(0 < windows < 360 for windows in missed)
    assert max(missed) <= 360
    rows = truth["views"]["speed_by_age"]
    logged = len(with_outcome(predicted(riders.SIMULATION), "logged"))
    assert sum(row["rides"] for row in rows) + sum(missed) == 360 * logged


def test_each_hundred_riders_of_a_city_make_one_row(
    truths: dict[str, dict[str, Any]],
) -> None:
    sent = predicted(riders.SIMULATION)
    cities = Counter(each.sending.event["city"] for each in with_outcome(sent, "logged"))
    rows: list[dict[str, Any]] = truths["riders"]["views"]["each_hundred"]
    assert Counter(row["city"] for row in rows) == {
        city: n // 100 for city, n in cities.items() if n >= 100
    }
    assert {row["window"]["end"] % 100 for row in rows} == {0}


def simulate(name: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"examples.{name}.simulator", *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", SIMULATIONS)
def test_the_truth_is_written_and_a_missing_collector_is_reported(
    name: str, tmp_path: Path
) -> None:
    outcome = simulate(
        *(name, "--events", "20", "--url", "http://127.0.0.1:9"),
        *("--truth", str(tmp_path / "truth.json")),
    )
    assert outcome.returncode == 1
    assert "cannot send to http://127.0.0.1:9" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert json.loads((tmp_path / "truth.json").read_text())["logged"] > 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--late", "2"], "a number from 0 to 1"),
        (["--late", "0.9", "--duplicate", "0.9"], "together at most 1"),
        (["--rate", "none"], "a number above 0"),
        (["--events", "1.5"], "a whole number"),
        (["--start", "4070908800000"], "happen after they are sent"),
    ],
)
def test_invalid_flags_are_reported(flags: list[str], message: str) -> None:
    outcome = simulate("clicks", *flags)
    assert outcome.returncode == 2
    assert message in outcome.stderr
