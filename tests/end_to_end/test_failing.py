"""Processes that keep dying under `run`: the others go on, and all recover by themselves."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import urllib.error
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.collect.small_disks import SmallDisk, small_disk
from tests.end_to_end.conftest import PIPELINE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.end_to_end.conftest import StartSystem, System

pytestmark = pytest.mark.timeout(900)
KILLS = 5
HEALTHY_SECONDS = 60.0


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallDisk]:
    with small_disk(tmp_path_factory.mktemp("disk"), 200 << 20) as disk:
        yield disk


@pytest.fixture(scope="module")
def system(start_system: StartSystem, disk: SmallDisk) -> Iterator[System]:
    with start_system(PIPELINE, home=disk.folder / "home") as running:
        yield running


def other_pid(system: System, tier: str, than: int) -> int | None:
    pid = system.pid(tier)
    return pid if pid != than else None


def kill_in_a_row(system: System, tier: str) -> None:
    """`kill -9` it each time that it is ready again."""
    for _ in range(KILLS):
        pid = system.until(partial(system.pid, tier))
        os.kill(pid, signal.SIGKILL)
        system.until(partial(other_pid, system, tier, pid), 240, f"another {tier}")


def failing(system: System) -> dict[str, dict[str, Any]]:
    """By `/v1/system`."""
    return {each["process"]: each for each in system.get("/v1/system")["failing"]}


def is_counted(system: System, city: str, number: int) -> bool:
    return any(row["city"] == city and row["n"] == number for row in system.rows("by_city"))


def problems(system: System) -> list[str]:
    answer = system.millstream("status", "--json")
    found: list[str] = json.loads(answer.stdout)["problems"]
    assert answer.returncode == (1 if found else 0)
    return found


def test_a_collector_that_hangs_is_said_to_be_silent_and_its_figures_to_be_old(
    system: System,
) -> None:
    system.post("orders", {"id": 0, "city": "Spa", "amount": 5})
    system.until(lambda: system.get("/v1/system")["tiers"]["collect"]["accepted"] == 1)
    pid = system.pid("collect")
    os.kill(pid, signal.SIGSTOP)
    try:
        collect = system.until(lambda: silent(system), what="silence")
        assert collect["accepted"] == 1
        assert collect["rate"] is None
        told = system.millstream("status")
        assert told.returncode == 1
        since = f"collect has not reported since {collect['reported_at'][:19]}Z"
        assert since in told.stdout
        assert "✗ silent" in told.stdout
        system.until(lambda: system.output_has(since), what="the line of figures")
        assert system.output_has("by then accepted 1")
    finally:
        os.kill(pid, signal.SIGCONT)
    system.until(lambda: system.get("/v1/system")["tiers"]["collect"]["state"] == "up")
    assert failing(system) == {}


def silent(system: System) -> dict[str, Any] | None:
    collect: dict[str, Any] = system.get("/v1/system")["tiers"]["collect"]
    return collect if collect["state"] == "down" else None


def test_a_collector_killed_five_times_takes_nobody_down(system: System) -> None:
    others = {tier: system.pid(tier) for tier in ("kafka", "analyze", "serve")}
    kill_in_a_row(system, "collect")
    found = system.until(lambda: failing(system).get("collect"))
    assert found["deaths"] >= KILLS
    assert found["reason"] == "signal SIGKILL"
    assert found["lines"]
    assert any(each.startswith("collect keeps dying: ") for each in problems(system))
    assert "collect keeps dying: " in system.millstream("status").stdout
    assert system.output_has("KEEPS DYING: 3 times, last by signal SIGKILL")
    assert {tier: system.pid(tier) for tier in others} == others
    system.post("orders", {"id": 1, "city": "Ghent", "amount": 5})
    system.until(partial(is_counted, system, "Ghent", 1))


def test_a_kafka_killed_five_times_comes_back_and_all_with_it(system: System) -> None:
    kill_in_a_row(system, "kafka")
    found = system.until(lambda: failing(system).get("kafka"))
    assert found["deaths"] >= KILLS
    system.until(lambda: system.post("orders", {"id": 2, "city": "Bruges", "amount": 5}))
    system.until(partial(is_counted, system, "Bruges", 1), 240)


def test_when_a_full_disk_has_room_again_everything_recovers_by_itself(
    system: System, disk: SmallDisk
) -> None:
    accepted = 0

    def is_accepted(number: int) -> bool:
        with contextlib.suppress(OSError, urllib.error.URLError, KeyError):
            event = {"id": 1000 + number, "city": "Mons", "amount": 1}
            return bool(system.post("orders", event)["accepted"] == 1)
        return False

    disk.fill()
    deadline = time.monotonic() + HEALTHY_SECONDS
    number = 0
    while time.monotonic() < deadline:
        accepted += is_accepted(number)
        number += 1
        assert system.process.poll() is None, system.log_tails()
        time.sleep(0.5)
    told = problems(system)
    assert told, "status must say that something is wrong"
    disk.make_room()
    system.until(lambda: is_accepted(number), 240, "room for an event")
    counted = partial(system.rows, "by_city")
    # What got no answer may be counted as well: it can be in the journal all the same.
    system.until(lambda: any(r["city"] == "Mons" and r["n"] > accepted for r in counted()), 240)


def test_what_a_killed_spark_leaves_behind_is_in_the_home_and_removed_by_the_next(
    system: System,
) -> None:
    scratch = system.home.path / "spark"

    def library_in_use() -> Path | None:
        """The one library in the folder, once this system's JVM has loaded it."""
        loaded = Path(f"/proc/{system.pid('spark')}/maps").read_text()
        libraries = list(scratch.glob("librocksdbjni*.so"))
        return libraries[0] if len(libraries) == 1 and str(libraries[0]) in loaded else None

    # A query loads it with its first task that has state, some time after it is running.
    library = system.until(library_in_use, what="the library")
    os.kill(system.pid("spark"), signal.SIGKILL)
    system.until(lambda: not library.exists(), 120, "the removal")
    system.until(library_in_use, 240, "the next JVM's library")


def test_a_minute_of_health_ends_the_alarm(system: System) -> None:
    system.until(lambda: failing(system) == {}, 300, "the end of the alarm")
    system.until(lambda: problems(system) == [], 120, "the end of all problems")
    assert system.output_has("stays up again")
    assert Path(system.home.logs / "collect.log").stat().st_size < 10_000_000
