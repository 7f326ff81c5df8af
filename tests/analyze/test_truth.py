"""Every row, sum and late event is what plain Python computes from the same events.

Events, delays, restarts, rebuilds and changes of the pipeline are random. All are drawn from one
seed, which a failure prints. `make soak-time` repeats the test with other seeds, and with a process
that is killed. TRUTH_SEED=17 TRUTH_KILL=1 repeats one run.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from tests.analyze.conftest import plain
from tests.analyze.tier import Killed, Threaded, Tier
from tests.analyze.view_watcher import PROVISIONAL, Watcher

from millstream.analyze.planning.planner import Planner
from millstream.analyze.verify.verify import verify
from millstream.cli.invoke import invoke
from millstream.cli.views import rebuild
from millstream.collect.intake.watermark import Watermark
from millstream.log.connection import client_config
from millstream.log.consumer import bounds, read_range
from millstream.log.settings import LogSettings
from millstream.log.topic_names import audit_topic, late_topic, stream_topic
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.simulation import (
    Faults,
    Predicted,
    SentEvent,
    Sliding,
    Tumbling,
    disorder,
    draw,
    grouped,
    late_records,
    predict,
    window_json,
    with_outcome,
)
from millstream.values.event import ID, WATERMARK
from millstream.values.ledger_entry import sums

if TYPE_CHECKING:
    from tests.analyze.conftest import Load

SEED = int(os.environ.get("TRUTH_SEED", "6"))
KILL = "TRUTH_KILL" in os.environ
ACTIONS = int(os.environ.get("TRUTH_ACTIONS", "4"))
# Seconds without any progress. A process that was killed makes none until its JVM runs and its
# views are planned, which takes minutes on a busy machine.
PATIENCE = 900.0 if KILL else 240.0
EVENTS = 240
MINUTE, LATENESS, AHEAD = 60_000, 120_000, 60_000
# So short that rows become final in every pause, and late events correct them.
IDLE = "2 seconds"
FAULTS = Faults(0.15, 0.1, 0.05, 0.05, 0.05, 0.02)
PAGES = ("/", "/news", "/docs")
PIPELINE = """
app.stream("clicks", schema="page STRING NOT NULL, price LONG, at TIMESTAMP", key="page",
           event_time="at", lateness="2 minutes", ahead="1 minute")
app.view("per_minute", key=["window", "page"], ledger=["n", "total"], sql='''
    SELECT window(at, '1 minute') AS window, page, count(*) AS n, sum(price * {factor}) AS total
    FROM clicks GROUP BY 1, 2''')
app.view("overlapping", key=["window"], mode="micro_batch", sql='''
    SELECT window(at, '2 minutes', '1 minute') AS window, count(*) AS n,
           sum(price * {factor}) AS total
    FROM clicks GROUP BY 1''')
app.view("delayed", key=["window"], trigger="at the watermark", accumulation="discard",
         ledger=["n"], sql='''
    SELECT window(at, '1 minute') AS window, count(*) AS n FROM clicks
    WHERE price > {factor} GROUP BY 1''')
"""
VIEWS = {"per_minute": Tumbling(MINUTE), "overlapping": Sliding(2 * MINUTE, MINUTE)}
Row = dict[str, Any]


class Collector:
    """Writes events as the collector does, with their watermarks."""

    def __init__(self, log: LogSettings, app: str) -> None:
        self._topic = stream_topic(app, "clicks")
        self._producer = Producer(client_config(log, linger_ms=0))
        self._watermark = Watermark(AHEAD)
        self.sent: list[Predicted] = []

    def send(self, predicted: Sequence[Predicted]) -> None:
        for each in predicted:
            self.sent.append(each)
            if each.outcome == "duplicate":
                continue
            sending, now = each.sending, int(time.time() * 1000)
            behind = self._watermark.advance([sending.at], now, ()).get(0)
            assert behind == each.watermark, "the model differs from the collector"
            headers = {ID: sending.id, **({WATERMARK: str(behind)} if behind else {})}
            self._producer.produce(
                *(self._topic, json.dumps(sending.event), str(sending.event["page"])),
                headers=list(headers.items()),
                timestamp=now,
            )
        assert self._producer.flush(10) == 0


def click(n: int, at: int, rng: Random) -> Row:
    return {"page": rng.choice(PAGES), "price": rng.randrange(10)}


def ungrouped(event: Mapping[str, Any]) -> None:
    return None


def truth(predicted: Sequence[Predicted], factor: int) -> dict[str, dict[str, Row]]:
    """The rows of each view when all windows are over: by key, without the key's columns."""

    def rows(groups: Mapping[Any, Sequence[Predicted]], *columns: str) -> dict[str, Row]:
        found = {}
        for (window, by), events in groups.items():
            key = [window_json(window), *([by] if by is not None else [])]
            prices = [factor * int(each.sending.event["price"]) for each in events]
            row = {"n": len(events), "total": sum(prices)}
            found[key_of(key)] = {name: row[name] for name in columns}
        return found

    minute, overlapping = VIEWS["per_minute"], VIEWS["overlapping"]
    dear = [each for each in predicted if int(each.sending.event["price"]) > factor]
    by_page = grouped(predicted, minute, LATENESS, lambda event: str(event["page"]))
    return {
        "per_minute": rows(by_page, "n", "total"),
        "overlapping": rows(grouped(predicted, overlapping, LATENESS, ungrouped), "n", "total"),
        "delayed": rows(grouped(dear, minute, LATENESS, ungrouped), "n"),
    }


def key_of(key: Sequence[Any]) -> str:
    return json.dumps(key, separators=(",", ":"))


class Run:
    """A pipeline, the events sent to it, and the actions on it."""

    def __init__(self, tier: Tier, pipeline: Load, seed: int) -> None:
        self.tier, self._pipeline = tier, pipeline
        self._rng = Random(f"{seed}:actions")
        self.factor = 1
        self._rebuilding: list[threading.Thread] = []
        self.app = pipeline(PIPELINE.format(factor=1))
        self.log = tier.settings.log
        ensure_topics(self.app, self.log)
        self.collector = Collector(self.log, self.app.name)
        self.watcher = Watcher(self.log, self.app.name)
        tier.start(self.app)

    def restart(self) -> None:
        self._await_work()
        self.tier.stop()
        self.tier.start(self.app)

    def change(self) -> None:
        """Change the pipeline, and restart."""
        self._await_work()
        self.tier.stop()
        self.factor += 1
        self.app = self._pipeline(PIPELINE.format(factor=self.factor))
        self.tier.start(self.app)

    def rebuild(self) -> None:
        view = self._rng.choice(["per_minute", "overlapping", "delayed"])
        self._wait(lambda: view in self.watcher.seen)
        bootstrap = f"--set=log.bootstrap={self.log.bootstrap}"
        command = ["rebuild", view, "--app", self.app.name, bootstrap, "--yes", "--json"]
        self._rebuilding.append(threading.Thread(target=invoke, args=(command,), daemon=True))
        self._rebuilding[-1].start()

    def pause(self) -> None:
        """Wait until rows are final."""
        self.await_truth()

    def _await_work(self) -> None:
        """Wait until the process works, and then a random time: an earlier kill proves nothing."""
        if KILL:
            begun = self._reports()
            self._wait(lambda: self._reports() > begun)
            time.sleep(5 * self._rng.random())

    def _reports(self) -> int:
        return sum(end for _, end in bounds(self.log, audit_topic(self.app.name)).values())

    def _wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"not so after {PATIENCE:g} s"
            time.sleep(0.1)

    def end_rebuilding(self) -> None:
        for each in self._rebuilding:
            each.join(PATIENCE)
            assert not each.is_alive(), f"a rebuild does not end: {self.newest_report()}"

    def await_truth(self) -> None:
        """Wait until nothing differs, as long as `analyze` makes progress."""
        deadline, reached = time.monotonic() + PATIENCE, self._reached()
        while differences := list(self.differences()):
            if (further := self._reached()) != reached:
                deadline, reached = time.monotonic() + PATIENCE, further
            assert time.monotonic() < deadline, "\n".join(
                [*differences[:20], str(self.newest_report())]
            )
            time.sleep(0.3)

    def _reached(self) -> Any:
        """The progress of queries and rebuilds, by the newest report of `analyze`."""
        found = {}
        for name, view in self.newest_report().items():
            of = view.get("rebuild", {})
            found[name] = (view.get("state"), view.get("read"), of.get("state"), of.get("done"))
        return found

    def differences(self) -> Iterator[str]:
        """What differs from the rows and sums of all events, with all rows final."""
        self.watcher.check()
        expected = truth(self.collector.sent, self.factor)
        for view, rows in expected.items():
            seen = self.watcher.seen.get(view)
            shown = {} if seen is None else seen.rows
            if view == "delayed" and seen is not None:
                shown = {key: {**row, "n": seen.sums[key]} for key, row in shown.items()}
            for key in rows.keys() | shown.keys():
                row = plain(shown.get(key, {}))
                found = {name: row.get(name) for name in rows.get(key, row)}
                state = shown.get(key, {}).get("_state")
                if found != rows.get(key) or state in (None, PROVISIONAL):
                    yield f"{view} {key} is {state} {found}, not {rows.get(key)}"
        for view in ("per_minute", "delayed"):
            entered = {key: amounts for key, (_, amounts) in self.balance(view).items()}
            for key, row in expected[view].items():
                if entered.get(key) != row:
                    yield f"{view}'s ledger says {entered.get(key)} of {key}, not {row}"
            for key in entered.keys() - expected[view].keys():
                if any(entered[key].values()):
                    yield f"{view}'s ledger has {entered[key]} of {key}, which has no row"

    def newest_report(self) -> Any:
        """The views in the newest report of `analyze`."""
        topic = audit_topic(self.app.name)
        ((partition, (_, end)),) = bounds(self.log, topic).items()
        newest = read_range(self.log, topic, partition, max(0, end - 1), end)
        return next((json.loads(each.value or b"")["views"] for each in newest), {})

    def balance(self, view: str) -> dict[str, Any]:
        return sums(self.watcher.entries(view))


@pytest.fixture
def tier(
    request: pytest.FixtureRequest, log_settings: LogSettings, tmp_path: Path
) -> Iterator[Tier]:
    home = tmp_path / "home"
    running: Tier
    if KILL:  # it has its own session; ours would only use memory
        running = Killed(log_settings, home, IDLE)
    else:
        running = Threaded(request.getfixturevalue("spark"), log_settings, home, IDLE)
    yield running
    running.stop()


def drawn_actions(rng: Random) -> list[str]:
    """One of each, and then random ones, in random order."""
    actions = ["restart", "rebuild", "change"]
    actions += rng.choices(["restart", "rebuild", "change", "pause"], k=max(0, ACTIONS - 3))
    rng.shuffle(actions)
    return actions


def drawn_events(seed: int) -> list[Predicted]:
    span = 6 * MINUTE
    start = int(time.time() * 1000) // MINUTE * MINUTE - span - 30 * MINUTE
    happened = draw(click, seed=seed, count=EVENTS, start=start, span=span)
    sendings: list[SentEvent] = disorder(
        happened, FAULTS, seed=seed, time="at", lateness=LATENESS, window=2 * MINUTE
    )
    return list(predict(sendings))


@pytest.mark.spark
@pytest.mark.timeout(3600 if KILL else 900)
def test_views_ledgers_and_late_events_are_right_whatever_happens(
    tier: Tier, pipeline: Load, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "SILENCE", PATIENCE)
    rng = Random(SEED)
    events, actions = drawn_events(SEED), drawn_actions(rng)
    print(f"TRUTH_SEED={SEED}: {', '.join(actions)}")
    cuts = sorted(rng.randrange(1, len(events)) for _ in actions)
    run = Run(tier, pipeline, SEED)
    for start, end, action in zip([0, *cuts], [*cuts, len(events)], [*actions, ""], strict=True):
        run.collector.send(events[start:end])
        if action:
            getattr(run, action)()
    run.end_rebuilding()
    run.await_truth()
    run.watcher.close()

    assert run.watcher.wrong == [], "no final row changes without a correction"
    for view in ("per_minute", "delayed"):
        check_ledger(run, view)
    check_late(run, events)
    check_batch(run, request.getfixturevalue("spark"))


def check_ledger(run: Run, view: str) -> None:
    """No entry comes twice, and each key has one assertion or none at any moment."""
    entries = run.watcher.entries(view)
    repeated = [name for name, count in Counter(each.id for each in entries).items() if count > 1]
    assert repeated == []
    asserted: dict[str, Any] = {}
    for entry in entries:
        key = key_of(entry.key)
        if entry.kind == "assertion":
            assert key not in asserted, entry
            asserted[key] = entry.amounts
        else:
            assert asserted.pop(key) == entry.amounts, entry


def check_late(run: Run, events: Sequence[Predicted]) -> None:
    """Events that are in no row are in the late topic, once, with the windows they are late for."""
    found: dict[str, Row] = {}
    topic = late_topic(run.app.name, "clicks")
    for partition, (first, end) in bounds(run.log, topic).items():
        for record in read_range(run.log, topic, partition, first, end):
            headers = {name: value.decode() for name, value in record.headers if value}
            assert headers[ID] not in found, "an event is in the late topic twice"
            found[headers[ID]] = {"reason": headers["late_reason"]}
            if "late_views" in headers and headers["late_reason"] == "late":
                found[headers[ID]]["views"] = set(json.loads(headers["late_views"]))
    expected = late_records(events, {**VIEWS, "delayed": VIEWS["per_minute"]}, LATENESS)
    for entry in expected.values():
        if "views" in entry:
            entry["views"] = set(entry["views"])
    assert found == expected
    missed = sum("per_minute" in entry.get("views", ()) for entry in found.values())
    counted = sum(row["n"] for row in run.watcher.seen["per_minute"].rows.values())
    logged, future = len(with_outcome(events, "logged")), len(with_outcome(events, "future"))
    assert counted + missed == logged
    assert logged + future == sum(
        end for _, end in bounds(run.log, stream_topic(run.app.name, "clicks")).values()
    )


def check_batch(run: Run, spark: SparkSession) -> None:
    """`verify` finds no difference in any view, its shown rows and its ledger."""
    topics = {name: seen.topic for name, seen in run.watcher.seen.items()}
    for name, rows in truth(run.collector.sent, run.factor).items():
        query = Planner(spark, run.app, run.tier.settings, topics=topics).query(name)
        result = verify(query, run.log)
        assert result.differences == []
        assert result.same == len(rows)
        for part in result.parts:  # final states may not be in the log yet
            assert part.same + part.not_compared["not due"] == len(rows), part
