"""What each kind of window answers for itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.analyze.windows.count_window import CountWindowSpec
from millstream.analyze.windows.session_window import SessionWindowSpec
from millstream.analyze.windows.time_window import TimeWindowSpec

specs = st.builds(
    lambda slide, times, rest, start, lateness: TimeWindowSpec(
        "s", "event", {"s": lateness}, slide * times + min(rest, slide - 1), slide, start
    ),
    st.integers(1, 50),
    st.integers(1, 5),
    st.integers(0, 49),
    st.integers(-100, 100),
    st.integers(0, 100),
)


@given(specs, st.integers(-1_000, 1_000))
def test_an_event_is_in_the_windows_that_its_time_falls_into(spec: TimeWindowSpec, at: int) -> None:
    every = range(spec.start_ms - 5_000 * spec.slide_ms, spec.start_ms + 5_000, spec.slide_ms)
    expected = [(s, s + spec.size_ms) for s in every if s <= at < s + spec.size_ms]
    assert spec.assign(at) == expected


def test_a_session_is_assigned_the_part_that_one_event_makes() -> None:
    spec = SessionWindowSpec("s", "event", {"s": 5}, gap_ms=10)
    assert (spec.assign(7), spec.lateness_ms) == ([(7, 17)], 5)
    assert spec.text == "session, ends after a gap of 10 ms, by event time of s"
    varying = SessionWindowSpec("s", "event", {"s": 5}, gap_ms=0)
    assert (spec.has_fixed_size, varying.has_fixed_size) == (True, False)


def test_only_windows_that_end_by_time_have_final_rows() -> None:
    spec = CountWindowSpec("s", "stream", {}, size=10, every=5)
    assert (spec.ends_by_time, spec.lateness_ms, spec.assign(7)) == (False, 0, [])
    assert TimeWindowSpec.ends_by_time
    assert SessionWindowSpec.ends_by_time


def test_count_windows_are_replayed_one_by_one_and_recomputed_by_their_own_plan() -> None:
    assert (CountWindowSpec.replays_in_batches, CountWindowSpec.has_batch_plan) == (False, True)
    assert (TimeWindowSpec.replays_in_batches, TimeWindowSpec.has_batch_plan) == (True, False)


def test_sessions_and_count_windows_cannot_be_estimated_from_a_sample() -> None:
    assert SessionWindowSpec.why_no_sample
    assert CountWindowSpec.why_no_sample
    assert not TimeWindowSpec.why_no_sample
