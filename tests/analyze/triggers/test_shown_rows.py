"""When a row is shown, and how."""

from __future__ import annotations

from tests.analyze.triggers.in_memory import FORGET_MS, TOPICS, InMemoryView


def test_every_change_is_shown() -> None:
    bench = InMemoryView()
    for revision in (1, 2, 3):
        bench.row("a", revision)
    bench.keep()
    assert bench.shown("n") == [1, 2, 3]


def test_what_a_restarted_query_repeats_is_shown_once() -> None:
    bench = InMemoryView(accumulation="discard")
    for revision in (1, 2, 3, 2, 3, 4):
        bench.row("a", revision)
    bench.keep()
    assert bench.shown("n") == [1, 1, 1, 1]


def test_an_interval_shows_the_newest_of_each_row_that_changed() -> None:
    bench = InMemoryView("every 10 seconds", windowed=False)
    bench.keep()
    bench.row("a", 1)
    bench.row("a", 2)
    bench.row("b", 1)
    bench.now = 9_999
    bench.keep()
    assert bench.view == []
    bench.now = 10_000
    bench.keep()
    assert bench.shown("k", "n") == [("a", 2), ("b", 1)]
    bench.row("b", 2)
    bench.now = 20_001
    bench.keep()
    assert bench.shown("k", "n")[2:] == [("b", 2)]


def test_rows_that_wait_for_an_interval_outlive_a_crash() -> None:
    bench = InMemoryView("every 10 seconds", windowed=False)
    bench.row("a", 1)
    bench.row("b", 1)
    bench.keep()
    bench.crash()
    bench.keep()
    bench.now = 10_000
    bench.keep()
    assert bench.shown("k") == ["a", "b"]


def test_every_so_many_events_show_a_row_wherever_the_reading_stops() -> None:
    whole, halting = InMemoryView("every 3 events"), InMemoryView("every 3 events")
    for bench in (whole, halting):
        for revision in (1, 2, 3, 4, 8, 9, 10):  # a micro-batch takes several events at once
            bench.row("a", revision)
    whole.keep()
    for count in range(len(halting.changes)):
        halting.keep(at_most=count + 1)
        halting.crash()
    assert whole.shown("n") == halting.shown("n") == [3, 8, 9]


def test_a_condition_shows_a_row_once_each_time_that_it_becomes_true() -> None:
    bench = InMemoryView("when total > 5")
    for revision, total in enumerate((1, 6, 7, 5, 4, 9, 1), start=1):
        bench.row("a", revision, total)
        bench.row("b", revision, total - 100)
    bench.keep()
    assert bench.shown("k", "n") == [("a", 2), ("a", 6)]
    bench.row("a", 8, 8)
    bench.crash()
    bench.keep()
    bench.crash()
    bench.keep()
    assert bench.shown("n") == [2, 6, 8]


def test_at_the_watermark_a_row_is_shown_once_it_is_final_and_when_it_is_corrected() -> None:
    bench = InMemoryView("at the watermark")
    for key, revision in (("a", 1), ("a", 2), ("b", 1)):
        bench.row(key, revision)
    bench.keep()
    assert bench.view == []
    bench.state("a")
    bench.row("a", 3)
    bench.state("a", "corrected")
    bench.keep()
    assert bench.shown("k", "n", "_state") == [("a", 2, "final"), ("a", 3, "corrected")]


def test_a_row_that_was_called_final_when_a_newer_one_was_there_is_final_with_that() -> None:
    bench = InMemoryView()
    bench.row("a", 1)
    bench.row("a", 2)
    bench.state("a", "final", revision=1)
    bench.state("a", "corrected")
    bench.row("a", 3)
    bench.keep()
    assert bench.shown("n", "_state") == [(1, None), (2, None), (2, "final"), (3, "corrected")]


def test_a_row_that_comes_when_its_window_is_over_is_a_correction_at_once() -> None:
    bench = InMemoryView("at the watermark")
    bench.row("a", 1)
    bench.state("a", "corrected")
    bench.keep()
    assert bench.shown("n", "_state") == [(1, "corrected")]


def test_a_final_row_stays_one_after_a_crash() -> None:
    bench = InMemoryView()
    bench.row("a", 1)
    bench.state()
    bench.keep()
    bench.crash()
    bench.row("a", 2)
    bench.keep()
    assert bench.shown("n", "_state") == [(1, None), (1, "final"), (2, "corrected")]


def test_what_compaction_left_of_a_final_row_says_so_once() -> None:
    bench = InMemoryView("every 2 events")
    bench.row("a", 1)
    bench.state()
    bench.changes = bench.changes[1:]
    bench.keep()
    (write,) = bench.view
    assert write.value is not None
    assert write.value.count(b"_state") == 1
    assert bench.shown("n", "_state") == [(1, "final")]


def test_a_row_that_no_condition_showed_is_not_shown_because_its_window_is_over() -> None:
    bench = InMemoryView("when total > 5")
    bench.row("a", 1, 6.0)
    bench.row("a", 2, 4.0)
    bench.row("b", 1, 4.0)
    bench.keep()
    bench.state()
    bench.keep()
    assert bench.shown("k", "n", "_state") == [("a", 1, None), ("a", 2, "final")]
    bench.state("b")
    bench.row("b", 2, 7.0)
    bench.keep()
    assert bench.shown("k", "n", "_state")[2:] == [("b", 2, "corrected")]


def test_differences_add_up_to_the_row_digit_by_digit() -> None:
    bench = InMemoryView(accumulation="discard")
    for revision, total in ((1, 0.1), (4, 0.3), (5, 1e10)):
        bench.row("a", revision, total)
    bench.keep()
    assert bench.shown("n") == [1, 3, 1]
    assert str(sum(bench.shown("total"))) == "10000000000.0"


def test_a_state_alone_is_a_difference_of_nothing() -> None:
    bench = InMemoryView(accumulation="discard")
    bench.row("a", 3, 1.5)
    bench.keep()
    bench.state()
    bench.keep()
    assert bench.shown("n", "_state") == [(3, None), (0, "final")]


def test_a_row_is_taken_back_before_the_next_one() -> None:
    bench = InMemoryView(accumulation="retract")
    bench.row("a", 1)
    bench.row("a", 2)
    bench.keep()
    bench.state()
    bench.keep()
    bench.row("a", 3)
    bench.keep()
    assert bench.shown("n", "_kind", "_state") == [
        (1, None, None),
        (1, "retraction", None),
        (2, None, None),
        (2, "retraction", None),
        (2, None, "final"),
        (2, "retraction", "final"),
        (3, None, "corrected"),
    ]


def test_a_row_that_ends_is_final_first_and_comes_back_as_what_is_new() -> None:
    bench = InMemoryView("at the watermark", accumulation="discard")
    bench.row("a", 2)
    bench.record("a", None)
    bench.keep()
    bench.crash()
    bench.keep()
    bench.row("a", 1)  # a restarted query repeats it
    bench.row("a", 3)
    bench.keep()
    assert bench.shown("n", "_state") == [(2, "final"), None, (1, "corrected")]


def test_what_ended_long_ago_is_forgotten() -> None:
    bench = InMemoryView()
    bench.row("a", 1)
    bench.state()
    bench.keep()
    bench.record("a", None)
    bench.keep()
    bench.now = FORGET_MS
    bench.keep()
    newest = {write.key: write.value for write in bench.written[TOPICS.panes]}
    assert {key: value for key, value in newest.items() if value is not None}.keys() == {
        b"position"
    }


def test_a_query_that_begins_anew_is_shown_anew() -> None:
    bench = InMemoryView()
    for revision in (1, 2, 3):
        bench.row("a", revision)
    bench.keep()
    bench.anew("other")
    bench.row("a", 1)
    bench.keep()
    assert bench.shown("n") == [1]


def test_nothing_is_shown_before_all_is_known_again() -> None:
    bench = InMemoryView("every 10 seconds")
    for revision in (1, 2):
        bench.row("a", revision)
    bench.row("b", 1)
    bench.state("b")
    bench.keep()
    bench.now = 10_000
    bench.crash()
    for _ in bench.changes:
        bench.keep(at_most=1)
        bench.now += 10_000
    bench.keep()
    assert bench.shown("k", "n") == [("b", 1), ("a", 2)]


def test_what_is_no_row_is_passed_over() -> None:
    bench = InMemoryView()
    bench.record("a", b"no JSON")
    bench.record("a", b'{"n": 1}')
    bench.row("a", 1)
    bench.keep()
    assert bench.shown("n") == [1]
