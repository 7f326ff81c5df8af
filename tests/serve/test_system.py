"""Several processes' reports as one picture."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from millstream import App
from millstream.audit import JournalState, Latency, Report, StreamCounts
from millstream.log.record import Record
from millstream.serve.system import System


def described(*reports: Report) -> dict[str, Any]:
    app = App("shop")
    app.stream("orders", schema="id LONG")
    system = System(app, {})
    for report in reports:
        value = msgspec.json.encode(report)
        system.take(Record("shop.audit", 0, 0, report.at, None, value, ()))
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(system.describe()))
    return found


def collector(name: str, counts: StreamCounts, journal: JournalState) -> Report:
    now = time.time_ns() // 1_000_000
    return Report("collect", name, now, now - 1000, {"orders": counts}, journal=journal)


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


def test_a_commands_report_is_no_collectors() -> None:
    moved = Report("command", "retry-1", time.time_ns() // 1_000_000, 0)
    collect = described(moved)["tiers"]["collect"]
    assert (collect["state"], collect["instances"], collect["journal"]) == ("down", 0, None)
