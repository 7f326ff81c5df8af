"""A view's watermark is not ahead of what the view has read."""

from __future__ import annotations

from millstream.analyze.watermarks.tracked_stream import StreamProgress
from millstream.analyze.watermarks.view_watermark import QueryProgress, ViewWatermarks


def recorded(*values: int) -> ViewWatermarks:
    """A stream whose n-th event, received at n thousand, brought the n-th watermark."""
    watermarks = ViewWatermarks()
    for number, watermark in enumerate(values, 1):
        reached = StreamProgress(watermark, watermark + 1, number * 1000, {"0": number}, "t")
        watermarks.record(float(number), {"s": reached})
    return watermarks


def watermark(watermarks: ViewWatermarks, now: float = 100.0, **progress: object) -> int:
    known = {"read": {}, "received": 0, "quiet": 0.0, "is_real_time": True, "is_running": True}
    return watermarks.watermark("v", ["s"], QueryProgress(**{**known, **progress}), now)  # type: ignore[arg-type]


def test_a_view_s_watermark_is_the_stream_s_at_the_offsets_of_its_checkpoint() -> None:
    read = {"t": {"0": 2}}
    assert watermark(recorded(10, 20, 30), read=read, is_real_time=False) == 20
    assert watermark(recorded(10, 20, 30), read={"t": {"0": 0}}, is_real_time=False) == 0


def test_windows_by_stream_time_use_the_time_when_events_were_received() -> None:
    assert watermark(recorded(10, 20, 30), received=2001, by_stream_time=True) == 21


def test_a_micro_batch_query_has_only_what_it_has_committed() -> None:
    read = {"t": {"0": 1}}
    assert (
        watermark(recorded(10, 20), read=read, is_real_time=False, received=9000, quiet=60.0) == 10
    )


def test_a_real_time_query_is_as_far_as_the_newest_event_in_its_rows() -> None:
    read = {"t": {"0": 1}}
    assert watermark(recorded(10, 20, 30), read=read, received=2001) == 20
    assert watermark(recorded(10, 20, 30), now=3.5, read=read, received=3000) == 20, "tasks differ"


def test_events_of_one_request_count_as_read_once_the_view_writes_no_more_rows() -> None:
    assert watermark(recorded(10, 20), received=2000, quiet=0.1) == 10
    assert watermark(recorded(10, 20), received=2000, quiet=2.0) == 20


def test_a_real_time_query_that_writes_no_rows_has_read_everything() -> None:
    assert watermark(recorded(10, 20, 30), received=3000, quiet=1.9) == 20
    assert watermark(recorded(10, 20, 30), received=3000, quiet=2.0) == 30
    assert watermark(recorded(10, 20, 30), received=3000, quiet=2.0, is_running=False) == 20


def test_events_that_are_in_no_row_count_as_filtered_out_after_a_while() -> None:
    assert watermark(recorded(10, 20, 30), received=2000, quiet=14.9) == 20
    assert watermark(recorded(10, 20, 30), received=2000, quiet=15.0) == 30
    assert watermark(recorded(10, 20, 30), received=2000, quiet=15.0, is_running=False) == 10
    assert watermark(recorded(10, 20, 30), quiet=14.9) == 0, "it may not have begun"
    assert watermark(recorded(10, 20, 30), quiet=15.0) == 30


def test_a_view_s_watermark_never_goes_back() -> None:
    watermarks = recorded(10, 20)
    assert watermark(watermarks, received=2001) == 20
    assert watermark(watermarks, received=0) == 20


def test_a_view_of_two_streams_is_as_far_as_the_slower_one() -> None:
    watermarks = recorded(10, 20)
    watermarks.record(1.0, {"other": StreamProgress(15, 16, 0, {}, "o")})
    progress = QueryProgress({}, 2001, 0.0, True, True)
    assert watermarks.watermark("v", ["s", "other", "without a time"], progress, 100.0) == 15
