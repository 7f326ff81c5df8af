"""What users can write instead of a query that Spark does not run as a stream."""

from __future__ import annotations

from typing import NamedTuple

from millstream.analyze.spark.query_instead import ranking_query, sorting_query
from millstream.pipeline.model import View

SORTS = "it sorts"
WINDOW_FUNCTION = "it uses a window function (OVER)"
DISTINCT = "it counts or sums distinct values"
GROUPED_TWICE = "it groups results that are grouped already"
LIMITS = "it takes a limited number of rows"
SUBQUERY = "it has a stream in a subquery"
TWO_TIMES = "it joins rows that have two event times"
ANTI = "it asks for the rows of a stream that have no match in another"
OUTER = "it keeps rows that have no match, without a bound on the time in which one may come"
SESSIONS = "it uses session windows"


class _Remedy(NamedTuple):
    python: str
    sql: str


_ASK = "when the view is read (POST /v1/query, or ?order= and limit=)"
_REMEDIES = {
    SORTS: _Remedy("leave orderBy and limit out", "leave ORDER BY and LIMIT out"),
    LIMITS: _Remedy("leave limit out", "leave LIMIT out"),
    WINDOW_FUNCTION: _Remedy(
        "group by what it is partitioned by, and take the first or last row with"
        " F.max_by(F.struct(…), 'at') or F.min_by; F.max_by(column, 'at', 3) gives the last three",
        "GROUP BY what it is partitioned by, and take the first or last row with"
        " max_by(struct(…), at) or min_by; max_by(column, at, 3) gives the last three",
    ),
    DISTINCT: _Remedy(
        "write F.approx_count_distinct('column'), or count exactly after dropDuplicates:"
        " rows.select('city', 'user').distinct().groupBy('city').count()",
        "write approx_count_distinct(column), or count exactly: SELECT city, count(*) AS users"
        " FROM (SELECT DISTINCT city, user FROM …) GROUP BY city",
    ),
    GROUPED_TWICE: _Remedy(
        "group by the same window in both, as in .groupBy('window'), or make a view with a key of"
        f" the inner grouping and group its rows {_ASK}",
        "GROUP BY the same window in both, or make a view with a key of the inner SELECT, and"
        f" GROUP BY over its rows {_ASK}",
    ),
    SUBQUERY: _Remedy(
        "join the other stream, with the time between the two bounded in the condition",
        "write a JOIN, as in FROM a JOIN b ON a.id = b.id AND b.at BETWEEN a.at AND a.at +"
        " INTERVAL 1 HOUR; to look rows up, join a view that is read as a reference",
    ),
    TWO_TIMES: _Remedy(
        "select one event time of what is joined first, and another only as a copy:"
        " F.timestamp_micros(F.unix_micros('at')).alias('first_at')",
        "select one event time of what is joined first, and another only as a copy:"
        " timestamp_micros(unix_micros(at)) AS first_at",
    ),
    ANTI: _Remedy(
        "use how='left' with the time between the two bounded in the condition, and keep the rows"
        " where the other's key is null",
        "write a LEFT JOIN with b.at BETWEEN a.at AND a.at + INTERVAL 1 HOUR in its condition, and"
        " WHERE b.id IS NULL",
    ),
    OUTER: _Remedy(
        "give both streams an event_time, and bound the time between the two in the condition, as"
        " in F.expr('b.at BETWEEN a.at AND a.at + INTERVAL 1 HOUR')",
        "give both streams an event_time, and write b.at BETWEEN a.at AND a.at + INTERVAL 1 HOUR"
        " into the condition",
    ),
    SESSIONS: _Remedy(
        "make the session_window of the stream's event_time column",
        "make the session_window of the stream's event_time column",
    ),
}


def remedy_for(view: View, reason: str) -> str:
    """What to write instead, in the language of the view's query; empty if not known."""
    remedy = next((each for why, each in _REMEDIES.items() if why in reason), None)
    if remedy is None:
        return ""
    written = remedy.python if view.sql is None else remedy.sql
    return f"{written}{_in_named_query(view, reason)}"


def _in_named_query(view: View, reason: str) -> str:
    """The same as a query over the view, which clients call and follow live."""
    if SORTS in reason or LIMITS in reason:
        return f", and sort the view's rows in a named query: {sorting_query(view)}"
    if WINDOW_FUNCTION in reason:
        return f"; or number the view's rows in a named query: {ranking_query(view)}"
    return ""
