"""Triggers and accumulation: when a row is shown, and how."""

from __future__ import annotations

from tests.analyze.triggers.in_memory import FORGET_MS, TOPICS, InMemoryView


def test_every_change_is_shown() -> None:
    view = InMemoryView()
    for revision in (1, 2, 3):
        view.row("a", revision)
    view.run()
    assert view.shown("n") == [1, 2, 3]


def test_rows_that_a_restarted_query_repeats_are_shown_once() -> None:
    view = InMemoryView(accumulation="discard")
    for revision in (1, 2, 3, 2, 3, 4):
        view.row("a", revision)
    view.run()
    assert view.shown("n") == [1, 1, 1, 1]


def test_an_interval_shows_the_newest_of_each_row_that_changed() -> None:
    view = InMemoryView("every 10 seconds", windowed=False)
    view.run()
    view.row("a", 1)
    view.row("a", 2)
    view.row("b", 1)
    view.now = 9_999
    view.run()
    assert view.shown_writes == []
    view.now = 10_000
    view.run()
    assert view.shown("k", "n") == [("a", 2), ("b", 1)]
    view.row("b", 2)
    view.now = 20_001
    view.run()
    assert view.shown("k", "n")[2:] == [("b", 2)]


def test_rows_that_wait_for_an_interval_survive_a_crash() -> None:
    view = InMemoryView("every 10 seconds", windowed=False)
    view.row("a", 1)
    view.row("b", 1)
    view.run()
    view.crash()
    view.run()
    view.now = 10_000
    view.run()
    assert view.shown("k") == ["a", "b"]


def test_every_n_events_shows_the_same_rows_wherever_reading_stops() -> None:
    whole, halting = InMemoryView("every 3 events"), InMemoryView("every 3 events")
    for view in (whole, halting):
        for revision in (1, 2, 3, 4, 8, 9, 10):  # a micro-batch takes several events at once
            view.row("a", revision)
    whole.run()
    for count in range(len(halting.changes)):
        halting.run(at_most=count + 1)
        halting.crash()
    assert whole.shown("n") == halting.shown("n") == [3, 8, 9]


def test_a_condition_shows_a_row_once_each_time_that_it_becomes_true() -> None:
    view = InMemoryView("when total > 5")
    for revision, total in enumerate((1, 6, 7, 5, 4, 9, 1), start=1):
        view.row("a", revision, total)
        view.row("b", revision, total - 100)
    view.run()
    assert view.shown("k", "n") == [("a", 2), ("a", 6)]
    view.row("a", 8, 8)
    view.crash()
    view.run()
    view.crash()
    view.run()
    assert view.shown("n") == [2, 6, 8]


def test_at_the_watermark_a_row_is_shown_once_it_is_final_and_when_it_is_corrected() -> None:
    view = InMemoryView("at the watermark")
    for key, revision in (("a", 1), ("a", 2), ("b", 1)):
        view.row(key, revision)
    view.run()
    assert view.shown_writes == []
    view.state("a")
    view.row("a", 3)
    view.state("a", "corrected")
    view.run()
    assert view.shown("k", "n", "_state") == [("a", 2, "final"), ("a", 3, "corrected")]


def test_a_state_of_an_older_row_makes_the_newer_row_final() -> None:
    view = InMemoryView()
    view.row("a", 1)
    view.row("a", 2)
    view.state("a", "final", revision=1)
    view.state("a", "corrected")
    view.row("a", 3)
    view.run()
    assert view.shown("n", "_state") == [(1, None), (2, None), (2, "final"), (3, "corrected")]


def test_the_first_row_of_a_window_that_is_over_is_a_correction() -> None:
    view = InMemoryView("at the watermark")
    view.row("a", 1)
    view.state("a", "corrected")
    view.run()
    assert view.shown("n", "_state") == [(1, "corrected")]


def test_a_final_row_stays_final_after_a_crash() -> None:
    view = InMemoryView()
    view.row("a", 1)
    view.state()
    view.run()
    view.crash()
    view.row("a", 2)
    view.run()
    assert view.shown("n", "_state") == [(1, None), (1, "final"), (2, "corrected")]


def test_a_final_row_that_compaction_left_has_its_state_once() -> None:
    view = InMemoryView("every 2 events")
    view.row("a", 1)
    view.state()
    view.changes = view.changes[1:]
    view.run()
    (write,) = view.shown_writes
    assert write.value is not None
    assert write.value.count(b"_state") == 1
    assert view.shown("n", "_state") == [(1, "final")]


def test_the_end_of_a_window_does_not_show_a_row_that_its_condition_never_showed() -> None:
    view = InMemoryView("when total > 5")
    view.row("a", 1, 6.0)
    view.row("a", 2, 4.0)
    view.row("b", 1, 4.0)
    view.run()
    view.state()
    view.run()
    assert view.shown("k", "n", "_state") == [("a", 1, None), ("a", 2, "final")]
    view.state("b")
    view.row("b", 2, 7.0)
    view.run()
    assert view.shown("k", "n", "_state")[2:] == [("b", 2, "corrected")]


def test_differences_add_up_to_the_row_digit_by_digit() -> None:
    view = InMemoryView(accumulation="discard")
    for revision, total in ((1, 0.1), (4, 0.3), (5, 1e10)):
        view.row("a", revision, total)
    view.run()
    assert view.shown("n") == [1, 3, 1]
    assert str(sum(view.shown("total"))) == "10000000000.0"


def test_a_state_without_new_events_is_a_difference_of_zero() -> None:
    view = InMemoryView(accumulation="discard")
    view.row("a", 3, 1.5)
    view.run()
    view.state()
    view.run()
    assert view.shown("n", "_state") == [(3, None), (0, "final")]


def test_a_row_is_retracted_before_the_next_one() -> None:
    view = InMemoryView(accumulation="retract")
    view.row("a", 1)
    view.row("a", 2)
    view.run()
    view.state()
    view.run()
    view.row("a", 3)
    view.run()
    assert view.shown("n", "_kind", "_state") == [
        (1, None, None),
        (1, "retraction", None),
        (2, None, None),
        (2, "retraction", None),
        (2, None, "final"),
        (2, "retraction", "final"),
        (3, None, "corrected"),
    ]


def test_a_deleted_row_is_final_first_and_comes_back_as_a_difference() -> None:
    view = InMemoryView("at the watermark", accumulation="discard")
    view.row("a", 2)
    view.record("a", None)
    view.run()
    view.crash()
    view.run()
    view.row("a", 1)  # a restarted query repeats it
    view.row("a", 3)
    view.run()
    assert view.shown("n", "_state") == [(2, "final"), None, (1, "corrected")]


def test_rows_that_were_deleted_long_ago_are_forgotten() -> None:
    view = InMemoryView()
    view.row("a", 1)
    view.state()
    view.run()
    view.record("a", None)
    view.run()
    view.now = FORGET_MS
    view.run()
    newest = {write.key: write.value for write in view.written[TOPICS.state]}
    assert {key: value for key, value in newest.items() if value is not None}.keys() == {
        b"position"
    }


def test_a_query_that_starts_again_is_shown_again() -> None:
    view = InMemoryView()
    for revision in (1, 2, 3):
        view.row("a", revision)
    view.run()
    view.restart_query("other")
    view.row("a", 1)
    view.run()
    assert view.shown("n") == [1]


def test_after_a_crash_nothing_is_shown_before_the_topic_is_read_again() -> None:
    view = InMemoryView("every 10 seconds")
    for revision in (1, 2):
        view.row("a", revision)
    view.row("b", 1)
    view.state("b")
    view.run()
    view.now = 10_000
    view.crash()
    for _ in view.changes:
        view.run(at_most=1)
        view.now += 10_000
    view.run()
    assert view.shown("k", "n") == [("b", 1), ("a", 2)]


def test_records_that_are_no_rows_are_ignored() -> None:
    view = InMemoryView()
    view.record("a", b"no JSON")
    view.record("a", b'{"n": 1}')
    view.row("a", 1)
    view.run()
    assert view.shown("n") == [1]
