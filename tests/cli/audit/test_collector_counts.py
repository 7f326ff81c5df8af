"""What all starts of all collectors counted, added up."""

from __future__ import annotations

import msgspec

from millstream.cli.audit.collector_counts import Reports, StreamRow
from millstream.values.report import JournalState, ProcessReport, StreamCounts


def report(
    start: int,
    counts: StreamCounts,
    *,
    ended: bool = False,
    entries: int = 0,
    collector: str = "c1",
) -> bytes:
    journal = JournalState(entries=entries, max_bytes=1)
    one = ProcessReport("collect", collector, start, start, {"orders": counts}, journal=journal)
    one.ended = ended
    return msgspec.json.encode(one)


def added_up(*reports: bytes) -> tuple[StreamRow, list[str]]:
    added = Reports()
    added.add([*reports, b"no report", None])
    rows, problems = added.rows()
    return rows["orders"], problems


def test_only_the_newest_counts_of_a_start_are_taken() -> None:
    row, problems = added_up(
        report(1, StreamCounts(accepted=3, logged=3)),
        report(1, StreamCounts(accepted=9, logged=5, rejected=2, shed=1, duplicates=1)),
        report(1, StreamCounts(accepted=1, failed=1), collector="c2"),
    )
    assert row == StreamRow(accepted=10, logged=5, rejected=2, failed=1, shed=1, duplicates=1)
    assert (row.off, problems) == (0, [])


def test_what_a_start_left_and_the_next_one_found_is_counted_once() -> None:
    row, problems = added_up(
        report(1, StreamCounts(accepted=10, logged=6, pending=4), ended=True, entries=4),
        report(2, StreamCounts(accepted=5, logged=5, recovered=4)),
    )
    assert (row.accepted, row.logged, row.pending, row.recovered) == (11, 11, 0, 4)
    assert (row.off, problems) == (0, [])


def test_what_was_left_and_is_not_read_back_yet_is_pending() -> None:
    left = report(1, StreamCounts(accepted=10, logged=6, pending=4), ended=True, entries=4)
    assert added_up(left)[0].pending == 4
    row, problems = added_up(
        left, report(2, StreamCounts(accepted=1, recovered=1, pending=1), entries=4)
    )
    assert (row.accepted, row.pending, row.off, problems) == (10, 4, 0, [])


def test_what_was_left_and_is_not_found_again_is_missing() -> None:
    row, problems = added_up(
        report(1, StreamCounts(accepted=10, logged=6, pending=4), ended=True, entries=4),
        report(2, StreamCounts(accepted=3, logged=3, recovered=3)),
    )
    assert row.off == 1
    assert "orders: 1 accepted events are neither in the journal of collector c1" in problems[0]


def test_more_in_the_journal_than_was_left_is_told() -> None:
    _, problems = added_up(
        report(1, StreamCounts(accepted=1, logged=1), ended=True),
        report(2, StreamCounts(accepted=2, logged=2, recovered=2)),
    )
    assert "found 2 events more in the journal" in problems[0]


def test_after_a_kill_the_next_start_tells_what_had_been_taken_in() -> None:
    row, problems = added_up(
        report(1, StreamCounts(accepted=10, logged=8, pending=2), entries=2),
        report(2, StreamCounts(accepted=7, logged=7, recovered=7)),
    )
    assert (row.accepted, row.logged, row.off, problems) == (15, 15, 0, [])


def test_what_a_killed_start_settled_after_its_last_report_is_unseen() -> None:
    row, problems = added_up(
        report(1, StreamCounts(accepted=10, logged=6, pending=4), entries=4),
        report(2, StreamCounts(accepted=1, logged=1, recovered=1)),
    )
    assert (row.accepted, row.logged, row.unseen, row.off, problems) == (10, 7, 3, 0, [])


def test_counts_that_do_not_add_up_in_themselves_are_told() -> None:
    row, problems = added_up(report(1, StreamCounts(accepted=5, logged=3)))
    assert row.off == 2
    assert any("counted +2 that do not add up" in problem for problem in problems)


def test_what_a_command_moved_is_moved() -> None:
    moved = ProcessReport("command", "retry-1", 3, 3, {"orders": StreamCounts(failed=-1, logged=1)})
    row, problems = added_up(
        report(1, StreamCounts(accepted=2, logged=1, failed=1)), msgspec.json.encode(moved)
    )
    assert (row.accepted, row.logged, row.failed, row.off, problems) == (2, 2, 0, 0, [])
