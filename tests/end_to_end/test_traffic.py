"""The traffic example, whole: every row is what its simulator knows to be true."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from examples.traffic.simulator import SIMULATION
from tests.end_to_end.true_rows import as_set, await_rows, last_watermark

from millstream.simulation import EventSender, SentEvent, predict

if TYPE_CHECKING:
    from tests.end_to_end.conftest import StartSystem, System

PIPELINE = Path(__file__).parents[2] / "examples/traffic/pipeline.py"
MINUTE = 60_000
# So long that no pause of a test passes for one of the stream's: what is open stays open.
PATIENT = ("--set", "analyze.idle=10 minutes")


@dataclass
class Traffic:
    """The running example, all of whose events were sent, and the truth about them."""

    system: System
    sendings: list[SentEvent]
    truth: dict[str, Any]
    watermark: str


@pytest.fixture(scope="module")
def traffic(start_system: StartSystem) -> Iterator[Traffic]:
    start = int(time.time() * 1000) // MINUTE * MINUTE - 40 * MINUTE
    sent = SIMULATION.sendings(seed=3, count=1_000, start=start, span=30 * MINUTE)
    truth = SIMULATION.truth(list(predict(sent)))
    flowing = [each for each in sent if not each.straggler]
    with start_system(PIPELINE.read_text(), *PATIENT) as system:
        example = Traffic(system, sent, truth, last_watermark(flowing))
        with EventSender(system.collect_url, "positions") as post:
            post.send(flowing)
            await_rows(
                *(system, "speeds", SIMULATION.truth(list(predict(flowing)))["views"]["speeds"]),
                *(("window", "city"), example.watermark),
            )
            post.send(sent[len(flowing) :])
        yield example


@pytest.mark.timeout(600)
def test_the_speed_in_each_city_is_true_in_all_five_minutes(traffic: Traffic) -> None:
    true = traffic.truth["views"]["speeds"]
    key = ("window", "city")
    await_rows(traffic.system, "speeds", true, key, traffic.watermark)


def test_each_road_has_its_newest_condition(traffic: Traffic) -> None:
    await_rows(traffic.system, "roads", traffic.truth["views"]["roads"], ("city", "segment"))


def test_each_car_is_where_it_was_last(traffic: Traffic) -> None:
    await_rows(traffic.system, "my_car", traffic.truth["views"]["my_car"], ("car",))


def test_every_position_is_a_sighting_without_identity(traffic: Traffic) -> None:
    true = traffic.truth["views"]["sightings"]
    path = "/v1/views/sightings?limit=10000"
    traffic.system.until(lambda: len(traffic.system.get(path)["rows"]) >= len(true), 60)
    assert as_set(traffic.system.get(path)["rows"]) == as_set(true)
