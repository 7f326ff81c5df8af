"""Windows that Spark does not have, to group by as with `F.window`.

    from millstream import windows

    riders.groupBy("city", windows.by_count(100)).agg(F.avg("speed").alias("speed"))

gives a row after each 100 riders of a city: `city`, `window` (the number of the window's first
event and of the one after its last, counted per city from 0) and `speed`. In SQL:

    SELECT city, count_window(100) AS window, avg(speed) AS speed
    FROM riders GROUP BY city, count_window(100)
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from millstream.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column

LARGEST = 100_000  # events in a window: the most that Spark's max_by can hold
_MARK = re.compile(r"millstream:count_window:(\d+):(\d+)")


class CountWindow(NamedTuple):
    """Windows of `size` events; one ends after each `every` events."""

    size: int
    every: int


def by_count(size: int, every: int | None = None) -> Column:
    """A column to group by: windows of `size` events of each group, in the order of the log.

    One window ends after each `every` events (by default `size`). A window has one row, which comes
    when the window is full. PipelineError for an invalid size.
    """
    from pyspark.sql import functions as F

    return F.expr(marker(size, every)).alias("window")


def marker(size: object, every: object = None) -> str:
    """SQL that marks such windows in a query, until the planner replaces it."""
    every = size if every is None else every
    for name, number in (("size", size), ("every", every)):
        if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= LARGEST:
            raise PipelineError(
                f"a window by count has {name} {number!r}",
                remedy=f"write a number of events from 1 to {LARGEST:,}",
            )
    text = f"millstream:count_window:{size}:{every}"
    return f"named_struct('start', CAST(length('{text}') AS BIGINT), 'end', CAST(0 AS BIGINT))"


def parse_marker(text: str) -> CountWindow | None:
    """The windows that the marker in an expression or plan (as text) means."""
    found = _MARK.search(text)
    return CountWindow(int(found[1]), int(found[2])) if found else None
