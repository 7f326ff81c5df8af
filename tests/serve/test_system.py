"""The system's state from several processes' reports."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from tests.process_failures import KAFKA_DIES

from millstream import App
from millstream.log.record import Record
from millstream.runtime.failing_processes import Failure
from millstream.serve.system import System
from millstream.supervise.status_tables import status_line
from millstream.values.report import JournalState, Latency, ProcessReport, StreamCounts


def described(*reports: ProcessReport, failures: Sequence[Failure] = ()) -> dict[str, Any]:
    app = App("shop")
    app.stream("orders", schema="id LONG")
    system = System(app, {}, failures=lambda: failures)
    for report in reports:
        value = msgspec.json.encode(report)
        system.add_report(Record("shop.audit", 0, 0, report.at, None, value, ()))
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(system.describe()))
    return found


def collector(name: str, counts: StreamCounts, journal: JournalState) -> ProcessReport:
    now = time.time_ns() // 1_000_000
    return ProcessReport("collect", name, now, now - 1000, {"orders": counts}, journal=journal)


def test_collectors_are_added_up_with_their_journals_and_steps() -> None:
    took = Latency(p50=1.0, p99=2.0, max=3.0, count=1, min=0.5, mean=1.0)
    one = StreamCounts(accepted=5, logged=3, failed=1, shed=1, journaled_ms=took)
    two = StreamCounts(accepted=4, logged=2, duplicates=1, pending=1)
    collect = described(
        collector("a", one, JournalState(entries=1, stored_bytes=10, max_bytes=100)),
        collector("b", two, JournalState(stored_bytes=5, max_bytes=100, broken="disk full")),
    )["tiers"]["collect"]
    counts = [collect[name] for name in ("accepted", "logged", "failed", "shed", "duplicates")]
    assert counts == [9, 5, 1, 1, 1]
    journal = {"entries": 1, "stored_bytes": 15, "max_bytes": 200, "broken": "disk full"}
    assert collect["journal"] == journal
    assert collect["journaled_ms"]["mean"] == 1.0
    assert collect["unaccounted"] == 0


def test_counts_that_do_not_add_up_are_shown() -> None:
    off = collector("a", StreamCounts(accepted=5, logged=3), JournalState())
    assert described(off)["tiers"]["collect"]["unaccounted"] == 2


def test_a_commands_report_is_not_counted_as_a_collectors() -> None:
    moved = ProcessReport("command", "retry-1", time.time_ns() // 1_000_000, 0)
    collect = described(moved)["tiers"]["collect"]
    assert (collect["state"], collect["instances"], collect["journal"]) == ("down", 0, None)


def test_a_collector_that_hangs_is_shown_with_its_last_figures_and_when_they_are_from() -> None:
    now = time.time_ns() // 1_000_000
    for silent_ms in (30_000, 3_600_000):
        at = now - silent_ms
        counts = StreamCounts(accepted=5, logged=5, rate=12.5)
        hung = ProcessReport(
            "collect", "a", at, at - 1000, {"orders": counts}, journal=JournalState()
        )
        system = described(hung)
        collect = system["tiers"]["collect"]
        assert (collect["state"], collect["instances"], collect["rate"]) == ("down", 0, None)
        assert collect["accepted"] == collect["streams"]["orders"]["accepted"] == 5
        told = datetime.fromisoformat(collect["reported_at"])
        assert round(told.timestamp() * 1000) == at
        assert "accepted 0" not in status_line(system, 0)
        assert "collect has not reported since" in status_line(system, 0)
    assert described()["tiers"]["collect"]["reported_at"] is None


def test_an_older_collector_is_left_out_when_another_reports() -> None:
    new = collector("b", StreamCounts(accepted=2, logged=2), JournalState())
    old = ProcessReport(
        "collect", "a", new.at - 30_000, 0, {"orders": StreamCounts(accepted=5, logged=5)}
    )
    assert described(old, new)["tiers"]["collect"]["accepted"] == 2


def test_processes_that_keep_failing_are_listed() -> None:
    (found,) = described(failures=[KAFKA_DIES])["failing"]
    assert (found["process"], found["deaths"], found["lines"]) == ("kafka", 7, ["error: no room"])
