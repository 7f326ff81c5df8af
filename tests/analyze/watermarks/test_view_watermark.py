"""A view's watermark is not ahead of what the view has read."""

from __future__ import annotations

from millstream.analyze.watermarks.late_events import StreamProgress
from millstream.analyze.watermarks.view_watermark import Progress, ViewWatermarks


def paced(*watermarks: int) -> ViewWatermarks:
    """A stream whose n-th event, received at n thousand, brought the n-th watermark."""
    pace = ViewWatermarks()
    for number, watermark in enumerate(watermarks, 1):
        reached = StreamProgress(watermark, watermark + 1, number * 1000, {"0": number}, "t")
        pace.note(float(number), {"s": reached})
    return pace


def watermark(pace: ViewWatermarks, now: float = 100.0, **progress: object) -> int:
    told = {"read": {}, "received": 0, "quiet": 0.0, "is_real_time": True, "is_running": True}
    return pace.watermark("v", ["s"], Progress(**{**told, **progress}), now)  # type: ignore[arg-type]


def test_a_view_is_as_far_as_the_stream_was_where_its_checkpoint_is() -> None:
    read = {"t": {"0": 2}}
    assert watermark(paced(10, 20, 30), read=read, is_real_time=False) == 20
    assert watermark(paced(10, 20, 30), read={"t": {"0": 0}}, is_real_time=False) == 0


def test_windows_by_stream_time_are_over_when_the_stream_s_own_time_is() -> None:
    assert watermark(paced(10, 20, 30), received=2001, by_stream_time=True) == 21


def test_a_micro_batch_query_has_only_what_it_has_committed() -> None:
    read = {"t": {"0": 1}}
    assert watermark(paced(10, 20), read=read, is_real_time=False, received=9000, quiet=60.0) == 10


def test_a_real_time_query_is_as_far_as_the_newest_event_in_its_rows() -> None:
    read = {"t": {"0": 1}}
    assert watermark(paced(10, 20, 30), read=read, received=2001) == 20
    assert watermark(paced(10, 20, 30), now=3.5, read=read, received=3000) == 20, "tasks differ"


def test_one_of_a_posts_events_does_not_speak_for_the_others_until_the_view_rests() -> None:
    assert watermark(paced(10, 20), received=2000, quiet=0.1) == 10
    assert watermark(paced(10, 20), received=2000, quiet=2.0) == 20


def test_a_real_time_query_that_writes_nothing_has_nothing_to_write() -> None:
    assert watermark(paced(10, 20, 30), received=3000, quiet=1.9) == 20
    assert watermark(paced(10, 20, 30), received=3000, quiet=2.0) == 30
    assert watermark(paced(10, 20, 30), received=3000, quiet=2.0, is_running=False) == 20


def test_events_that_are_in_no_row_are_waited_for_until_they_can_be_taken_for_left_out() -> None:
    assert watermark(paced(10, 20, 30), received=2000, quiet=14.9) == 20
    assert watermark(paced(10, 20, 30), received=2000, quiet=15.0) == 30
    assert watermark(paced(10, 20, 30), received=2000, quiet=15.0, is_running=False) == 10
    assert watermark(paced(10, 20, 30), quiet=14.9) == 0, "it may not have begun"
    assert watermark(paced(10, 20, 30), quiet=15.0) == 30


def test_a_view_s_watermark_never_goes_back() -> None:
    pace = paced(10, 20)
    assert watermark(pace, received=2001) == 20
    assert watermark(pace, received=0) == 20


def test_a_view_of_two_streams_is_as_far_as_the_slower_one() -> None:
    pace = paced(10, 20)
    pace.note(1.0, {"other": StreamProgress(15, 16, 0, {}, "o")})
    progress = Progress({}, 2001, 0.0, True, True)
    assert pace.watermark("v", ["s", "other", "without a time"], progress, 100.0) == 15
