"""A view that cannot keep up, in a whole system: it takes a sample, says so, and stops in time.

Each event costs the view a hundredth of a second, in which it waits, so that no machine manages
more than a hundred a second; whoever recomputes it does not wait. SHED_KILL=1 also kills `analyze`
amid the rush, and verifies the view then and in the end, which takes longer than all the rest:
`make soak-time` does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from millstream.log.consumer import bounds, read_range
from millstream.log.settings import LogSettings
from millstream.log.topic_names import audit_topic
from millstream.runtime.home import is_alive

if TYPE_CHECKING:
    from tests.end_to_end.conftest import StartSystem, System

KILL = "SHED_KILL" in os.environ
PIPELINE = """
import os
import time
from pyspark.sql import DataFrame, functions as F
from millstream import App

app = App("rush")
app.stream("orders", schema="phase STRING NOT NULL, city STRING NOT NULL, amount LONG", key="city")

def looked_up(city: str) -> str:
    time.sleep(float(os.environ.get("RUSH_WAIT", "0")))
    return city

@app.view(key=["phase", "city"], shed="5 seconds")
def by_city(orders: DataFrame) -> DataFrame:
    city = F.udf(looked_up, "string", useArrow=False)("city")
    return (orders.select("phase", city.alias("city"), "amount").groupBy("phase", "city")
                  .agg(F.count("*").alias("n"), F.sum("amount").alias("amount")))
"""
# A batch that is under way is done again when the share changes: let it take seconds.
SETTINGS = """
[analyze]
batch_events = 300
"""
CITIES = ("Bern", "Ghent", "Kyoto")
AMOUNT = 2
TOO_MANY = 300  # events a second
EVERY = 0.25  # seconds
Row = dict[str, Any]


class Rush(threading.Thread):
    """Posts more than the view can manage, until it is ended."""

    def __init__(self, system: System) -> None:
        super().__init__(name="rush", daemon=True)
        self._system, self._is_over = system, threading.Event()
        self._failure: BaseException | None = None
        self.sent: Counter[str] = Counter()
        self.start()

    def run(self) -> None:
        try:
            while not self._is_over.wait(EVERY):
                self.sent += post(self._system, "rush", round(TOO_MANY * EVERY))
        except BaseException as failure:
            self._failure = failure

    def end(self) -> None:
        self._is_over.set()
        self.join(60)
        if self._failure is not None:
            raise self._failure


@contextlib.contextmanager
def rushing(system: System) -> Iterator[Rush]:
    rush = Rush(system)
    try:
        yield rush
    finally:
        rush.end()


def post(system: System, phase: str, count: int) -> Counter[str]:
    """How many of each city were handed in."""
    cities = [CITIES[number % 3] for number in range(count)]
    events = [{"phase": phase, "city": city, "amount": AMOUNT} for city in cities]
    assert system.post("orders", events)["accepted"] == count
    return Counter(cities)


def told(system: System) -> Row:
    """What is said of the view to who asks, and to the dashboard."""
    view: Row = system.get("/v1/system")["tiers"]["analyze"]["views"]["by_city"]
    return view


def rows(system: System, phase: str) -> dict[str, Row]:
    found = system.get("/v1/views/by_city?lineage=true")["rows"]
    return {row["city"]: row for row in found if row["phase"] == phase}


def is_exact(system: System, phase: str, sent: Counter[str]) -> bool:
    """Whether the rows say what was sent, and that they are sure of it."""
    return rows(system, phase).keys() == sent.keys() and all(
        (row["n"], row["amount"]) == (sent[city], AMOUNT * sent[city])
        and row["_error"] == {"n": 0, "amount": 0}
        for city, row in rows(system, phase).items()
    )


def shares(system: System) -> list[float]:
    """The view's shares one after another, as the audit topic has them."""
    log, topic, found = LogSettings(bootstrap=system.bootstrap), audit_topic("rush"), [0.0]
    for partition, (start, stop) in bounds(log, topic).items():
        for record in read_range(log, topic, partition, start, stop):
            report = json.loads(record.value or b"")
            view = report.get("views", {}).get("by_city", {})
            if report["tier"] == "analyze" and view.get("share", 1.0) != found[-1]:
                found.append(view.get("share", 1.0))
    return found[1:]


def verified(system: System) -> Row:
    outcome = system.millstream("verify", "by_city", "--json", seconds=600)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    verdict: Row = json.loads(outcome.stdout)
    return verdict


def kill_analyze(system: System) -> None:
    """And wait until the view has got on, with the sample that it took before."""
    before, pid = told(system), system.pid("analyze")
    os.kill(pid, signal.SIGKILL)
    system.until(lambda: not is_alive(pid), 10, "the end of analyze")
    system.until(
        lambda: (
            (view := told(system))["state"] == "running"
            and view["share"] < 1
            and view["shed"] > before.get("shed", 0)
        ),
        240,
        "a view that goes on with its sample",
    )


@pytest.mark.timeout(1800 if KILL else 600)
def test_a_view_that_cannot_keep_up_takes_a_sample_until_it_can(
    start_system: StartSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUSH_WAIT", "0.01")
    with start_system(PIPELINE, files={"millstream.toml": SETTINGS}) as system:
        monkeypatch.delenv("RUSH_WAIT")
        calm = post(system, "calm", 30)
        system.until(lambda: is_exact(system, "calm", calm), 60, "exact rows")
        system.until(lambda: told(system)["behind"] == 0, 60, "a view that keeps up")
        assert told(system).get("share", 1.0) == 1

        with rushing(system) as rush:
            system.until(lambda: told(system)["behind_s"] > 5, 60, "a view that is behind")
            system.until(lambda: told(system).get("share", 1.0) < 1, 90, "a sample")
            system.until(
                lambda: (
                    len(held := rows(system, "rush")) == 3
                    and all(row["_error"]["n"] > 0 for row in held.values())
                ),
                120,
                "estimates that say so",
            )
            assert "% of its input to keep up" in system.millstream("status").stdout
            if KILL:
                kill_analyze(system)
                assert verified(system)["differences"] == []

        # It has to be noticed that no more comes; then the query is started again.
        system.until(
            lambda: (
                (view := told(system)).get("share", 1.0) == 1
                and (view["state"], view["behind"]) == ("running", 0)
            ),
            120,
            "a view that takes all again",
        )
        after = post(system, "after", 30)
        system.until(lambda: is_exact(system, "after", after), 60, "exact rows again")
        assert is_exact(system, "calm", calm)
        check_estimates(system, rush.sent)
        seen = shares(system)
        assert seen[0] == seen[-1] == 1
        assert 0 < min(seen) < 1

        check_balance(system, (calm + rush.sent + after).total())
        if KILL:
            verdict = verified(system)
            assert (verdict["differences"], verdict["same"]) == ([], 9)


def check_estimates(system: System, sent: Counter[str]) -> None:
    """Three times the bars is six standard deviations, of each of three cities."""
    estimated = rows(system, "rush")
    assert estimated.keys() == sent.keys()
    for city, row in estimated.items():
        error = row["_error"]
        assert 0 < error["n"] < row["n"]
        assert abs(row["n"] - sent[city]) <= 3 * error["n"]
        assert abs(row["amount"] - AMOUNT * sent[city]) <= 3 * error["amount"]
        assert row["amount"] == pytest.approx(AMOUNT * row["n"], rel=0.01)


def check_balance(system: System, logged: int) -> None:
    """Every event is in a row, or counted as shed."""

    def adds_up() -> bool:
        outcome = system.millstream("audit", "--json")
        view = json.loads(outcome.stdout)["views"]["by_city"]
        held = sum(
            row["_revision"]
            for phase in ("calm", "rush", "after")
            for row in rows(system, phase).values()
        )
        return (
            outcome.returncode == 0
            and (view["logged"], view["read"], view["waiting"]) == (logged, logged, 0)
            and 0 < view["shed"] == logged - held
        )

    system.until(adds_up, 60, "a balance")
