"""Durations as users write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.syntax.duration import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("10 minutes", timedelta(minutes=10)),
        ("1 minute", timedelta(minutes=1)),
        ("3 Hours", timedelta(hours=3)),
        ("500 ms", timedelta(milliseconds=500)),
        ("1.5h", timedelta(minutes=90)),
        ("1 day 12 hours", timedelta(hours=36)),
        (" 2 weeks ", timedelta(weeks=2)),
        ("0 seconds", timedelta()),
        ("30s", timedelta(seconds=30)),
    ],
)
def test_a_duration_is_numbers_and_units(text: str, means: timedelta) -> None:
    assert parse_duration(text) == means


@pytest.mark.parametrize(
    "text", ["", "10", "minutes", "10 parsecs", "-1 hour", "1 hour or so", "9" * 30 + " days"]
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write it as '10 minutes'"):
        parse_duration(text)


@given(st.timedeltas(min_value=timedelta(), max_value=timedelta(days=10_000)))
def test_a_duration_that_we_write_reads_back_to_the_millisecond(duration: timedelta) -> None:
    whole = timedelta(milliseconds=duration // timedelta(milliseconds=1))
    assert parse_duration(format_duration(whole)) == whole


def test_a_duration_is_written_in_the_units_that_it_has() -> None:
    assert format_duration(timedelta(hours=3)) == "3 hours"
    assert format_duration(timedelta(minutes=1, milliseconds=5)) == "1 minute 5 ms"
    assert format_duration(timedelta()) == "0 seconds"
