"""The examples of time, whole: every row, every sum and every late event is what is true.

Events, their delays and the moment when Spark is killed are drawn from one seed: `make soak-time`
runs all this over and over with others.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from examples.clicks import simulator as clicks
from examples.riders import simulator as riders
from tests.end_to_end.true_rows import differs, last_watermark

from millstream.log.consumer import bounds, read_range
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.simulation import EventSender, SentEvent, Simulation, predict
from millstream.simulation.windows import iso_time
from millstream.values.event import ID

if TYPE_CHECKING:
    from tests.end_to_end.conftest import StartSystem, System

EXAMPLES = Path(__file__).parents[2] / "examples"
SEED = int(os.environ.get("TIME_SEED", "4"))
MINUTE = 60_000
# So long that no pause of a test passes for one of the stream's: what is open stays open.
PATIENT = ("--set", "analyze.idle=10 minutes")
Row = dict[str, Any]


@dataclass
class Example:
    """A running example, and what it was sent."""

    app: str
    system: System
    simulation: Simulation
    sendings: list[SentEvent]

    def flowing(self) -> list[SentEvent]:
        return [each for each in self.sendings if not each.straggler]

    def watermark(self) -> str:
        """Where it is when all that flows is in: stragglers do not move it."""
        return last_watermark(self.flowing())

    def post(self, sendings: Sequence[SentEvent]) -> None:
        with EventSender(self.system.collect_url, self.simulation.stream) as post:
            post.send(sendings)

    def truth(self, sendings: Sequence[SentEvent] | None = None) -> Row:
        return self.simulation.truth(list(predict(sendings or self.sendings)))

    def await_views(self, truth: Row, watermark: str, *views: str) -> None:
        """Wait until the views hold what is true when the watermark is there, and nothing else."""
        for view in views:
            expected = {key_of(row): row for row in truth["views"][view]}

            def is_true(view: str = view, expected: Mapping[str, Row] = expected) -> bool:
                time.sleep(0.3)  # thousands of rows are not asked for at every turn of the wait
                held = {key_of(row): row for row in self.system.rows(view)}
                return held.keys() == expected.keys() and not any(
                    differs(row, expected[key], watermark) for key, row in held.items()
                )

            try:
                self.system.until(is_true, 120, f"the truth in {view}")
            except BaseException:
                self.show_difference(view, expected, watermark)
                raise

    def show_difference(self, view: str, expected: Mapping[str, Row], watermark: str) -> None:
        held = {key_of(row): row for row in self.system.rows(view)}
        for key in sorted(held.keys() | expected.keys()):
            if key not in held or key not in expected:
                print(f"{view} has {held.get(key)}, should have {expected.get(key)}")
            elif differs(held[key], expected[key], watermark):
                print(f"{view} has {held[key]}, should have {expected[key]}")

    def records(self, topic: str) -> Iterator[Record]:
        log = LogSettings(bootstrap=self.system.bootstrap)
        for partition, (start, stop) in bounds(log, topic).items():
            yield from read_range(log, topic, partition, start, stop)

    def late(self) -> dict[str, Row]:
        """What the late topic holds, as the simulator tells it."""
        found: dict[str, Row] = {}
        for record in self.records(f"{self.app}.late.{self.simulation.stream}"):
            headers = {name: value.decode() for name, value in record.headers}
            entry: Row = {"reason": headers["late_reason"]}
            assert int(headers["late_by_ms"]) > 0
            if entry["reason"] == "late":
                views = json.loads(headers["late_views"])
                entry["views"] = {
                    view: sorted([in_rows(start), in_rows(end)] for start, end in missed)
                    for view, missed in views.items()
                }
            assert headers[ID] not in found, "an event is in the late topic twice"
            found[headers[ID]] = entry
        return found


def in_rows(moment: str) -> str:
    """A moment as rows write it: to the microsecond."""
    return iso_time(round(datetime.fromisoformat(moment).timestamp() * 1000))


def key_of(row: Row) -> str:
    parts = [row.get(name) for name in ("page", "age_group", "city")]
    return json.dumps([row["window"]["start"], *parts])


def run_example(
    start_system: StartSystem, name: str, simulation: Simulation, count: int, span: int
) -> Iterator[Example]:
    """The example, with all that flows in its views and then all that straggles."""
    start = int(time.time() * 1000) // MINUTE * MINUTE - span - 10 * MINUTE
    sendings = simulation.sendings(seed=SEED, count=count, start=start, span=span)
    with start_system((EXAMPLES / name / "pipeline.py").read_text(), *PATIENT) as system:
        yield Example(name, system, simulation, sendings)


@pytest.fixture(scope="module")
def site(start_system: StartSystem) -> Iterator[Example]:
    yield from run_example(start_system, "clicks", clicks.SIMULATION, 1_500, 30 * MINUTE)


def entries(example: Example) -> list[Row]:
    topic = "clicks.ledger.clicks_per_minute"
    return [json.loads(record.value or b"") for record in example.records(topic)]


@pytest.mark.timeout(600)
def test_clicks_are_true_whatever_is_killed_and_when_stragglers_have_come(site: Example) -> None:
    flowing = site.flowing()
    crash = Random(SEED).randrange(len(flowing) // 4, len(flowing))
    site.post(flowing[:crash])
    site.system.until(lambda: site.system.rows("clicks_per_minute"), 60, "the first rows")
    spark = site.system.pid("spark")
    os.kill(spark, signal.SIGKILL)
    site.post(flowing[crash:])
    site.system.until(lambda: site.system.pid("spark") != spark, 240, "another Spark")
    site.system.await_running()
    so_far, watermark = site.truth(flowing), site.watermark()
    site.await_views(so_far, watermark, "clicks_per_minute")
    rows = closed(so_far["views"]["clicks_per_minute"], watermark)
    site.system.until(lambda: summed(entries(site)) == clicks_of(rows), 60, "the ledger so far")

    site.post(site.sendings[len(flowing) :])
    truth = site.truth()
    site.await_views(truth, watermark, "clicks_per_minute")
    rows = closed(truth["views"]["clicks_per_minute"], watermark)
    site.system.until(lambda: summed(entries(site)) == clicks_of(rows), 60, "the whole ledger")


def test_minutes_are_told_when_they_are_complete_and_not_before(site: Example) -> None:
    truth = site.truth()
    truth["views"]["site_per_minute"] = closed(truth["views"]["site_per_minute"], site.watermark())
    site.await_views(truth, site.watermark(), "site_per_minute")


def closed(rows: Sequence[Row], watermark: str) -> list[Row]:
    return [row for row in rows if row["window"]["end"] <= watermark]


def summed(ledger: Sequence[Row]) -> dict[str, int]:
    """The clicks of each row by the ledger, added up as they come."""
    sums: dict[str, int] = defaultdict(int)
    for entry in ledger:
        sign = 1 if entry["kind"] == "assertion" else -1
        window, page = entry["key"]
        sums[key_of({"window": window, "page": page})] += sign * entry["amounts"]["clicks"]
    return dict(sums)


def clicks_of(rows: Sequence[Row]) -> dict[str, int]:
    return {key_of(row): row["clicks"] for row in rows}


def test_the_ledger_says_which_stragglers_corrected_a_row(site: Example) -> None:
    by_row: dict[str, list[Row]] = defaultdict(list)
    for entry in entries(site):
        window, page = entry["key"]
        by_row[key_of({"window": window, "page": page})].append(entry)
    truth = site.truth()
    assert truth["corrected_by"]
    for corrected in truth["corrected_by"]:
        made = by_row[key_of(corrected)]
        reasons = {name for entry in made for name in entry["reason"]}
        assert set(corrected["ids"]) <= reasons
        # A row that was called final only when they were in, on a busy machine, is not corrected.
        kinds = [entry["kind"] for entry in made]
        assert kinds == ["assertion", *["retraction", "assertion"] * (len(kinds) // 2)]
    for row in site.system.rows("clicks_per_minute"):
        if row["_state"] == "final":
            assert [entry["kind"] for entry in by_row[key_of(row)]] == ["assertion"]
    ids = [entry["id"] for entry in entries(site)]
    assert len(set(ids)) == len(ids)


def test_the_bill_is_what_is_owed(site: Example) -> None:
    command = [sys.executable, str(EXAMPLES / "clicks/billing.py"), "--once"]
    outcome = subprocess.run(
        [*command, "--url", site.system.serve_url], capture_output=True, text=True, timeout=60
    )
    assert outcome.returncode == 0, outcome.stderr
    owed: Counter[str] = Counter()
    for row in closed(site.truth()["views"]["clicks_per_minute"], site.watermark()):
        owed[row["page"]] += row["clicks"]
    assert json.loads(outcome.stdout) == owed


def test_no_final_row_changed_without_becoming_corrected(site: Example) -> None:
    states: dict[bytes, tuple[str, int]] = {}
    for record in site.records("clicks.view.clicks_per_minute"):
        row, key = json.loads(record.value or b""), record.key or b""
        before, clicks = states.get(key, ("provisional", 0))
        now = row.get("_state", "provisional")
        if before != "provisional" and row["clicks"] > clicks:
            # Spark's row comes first; it shows as corrected by itself, and the closer says so.
            assert now in ("corrected", "provisional")
        states[key] = (now if now != "provisional" else before, max(clicks, row["clicks"]))


def test_what_is_in_no_row_is_in_the_late_topic(site: Example) -> None:
    expected = site.truth()["late"]
    site.system.until(lambda: len(site.late()) >= len(expected), 60, "the late clicks")
    assert site.late() == expected


@pytest.fixture(scope="module")
def city(start_system: StartSystem) -> Iterator[Example]:
    yield from run_example(start_system, "riders", riders.SIMULATION, 500, 12 * MINUTE)


@pytest.mark.timeout(600)
def test_rides_are_true_in_every_window(city: Example) -> None:
    flowing = city.flowing()
    city.post(flowing)
    city.await_views(city.truth(flowing), city.watermark(), "speed_each_30s", "speed_by_age")
    city.post(city.sendings[len(flowing) :])
    city.await_views(city.truth(), city.watermark(), "speed_each_30s", "speed_by_age")


def test_each_hundred_riders_of_a_city_make_one_event(city: Example) -> None:
    expected = city.truth()["views"]["each_hundred"]
    city.system.until(
        lambda: len(city.system.rows("each_hundred")) >= len(expected), 60, "each hundred"
    )
    assert city.system.rows("each_hundred") == expected != []


def test_rides_that_missed_a_window_are_in_the_late_topic(city: Example) -> None:
    expected = city.truth()["late"]
    city.system.until(lambda: len(city.late()) >= len(expected), 60, "the late rides")
    assert city.late() == expected
