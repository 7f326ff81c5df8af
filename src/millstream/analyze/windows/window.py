"""Time windows in a user's plan: which one it groups by, how long it is, who is late for it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from pyspark.sql import functions as F

from millstream.analyze.records.reader import TIME_KEY, TimeDomain
from millstream.analyze.spark.catalyst import (
    Attribute,
    Catalyst,
    Expression,
    LogicalPlan,
    identity,
    items,
    name_of,
)
from millstream.syntax.duration import milliseconds

# How Spark marks the column that its functions window() and session_window() make.
_MARKS: dict[str, Literal["window", "session"]] = {
    "spark.timeWindow": "window",
    "spark.sessionWindow": "session",
}
_SOME_TIME = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Grouped:
    """The window that an Aggregate groups by."""

    attribute: Attribute
    function: Literal["window", "session"]
    time: TimeDomain | None  # None: of a column that is neither of the stream's times
    aggregate: LogicalPlan
    filters_late: bool = False  # whether events that are late for it are kept out

    @property
    def is_alone(self) -> bool:
        """Whether it is a session by which alone is grouped."""
        return self.function == "session" and self.aggregate.groupingExpressions().size() == 1


@dataclass(frozen=True, slots=True)
class Extent:
    """The length of windows, and where they begin, in milliseconds."""

    size: int
    slide: int
    start: int


def grouped_window(aggregate: LogicalPlan) -> Grouped | None:
    """The time window among what an Aggregate groups by, if one is there."""
    for group in items(aggregate.groupingExpressions()):
        for attribute in items(group.references().toSeq()):
            metadata = attribute.metadata()
            for mark, function in _MARKS.items():
                if metadata.contains(mark):
                    time = metadata.getString(TIME_KEY) if metadata.contains(TIME_KEY) else None
                    return Grouped(attribute, function, time, aggregate)
    return None


def without_late(
    catalyst: Catalyst, plan: LogicalPlan, window: Attribute, closed: Attribute
) -> LogicalPlan:
    """The plan's rows but those of events that came after their window was closed to them."""
    ends, until = catalyst.column(window).getField("end"), catalyst.column(closed)
    return catalyst.analysed(catalyst.frame(plan).filter(until.isNull() | (until < ends)))


def in_time(
    catalyst: Catalyst, plan: LogicalPlan, event_time: Attribute, closed: Attribute
) -> LogicalPlan:
    """The plan's events but those without a time, and those that came too long after theirs.

    In milliseconds, as the timekeeper counts.
    """
    at, until = (F.unix_millis(catalyst.column(each)) for each in (event_time, closed))
    kept = at.isNotNull() & (until.isNull() | (until < at))
    return catalyst.analysed(catalyst.frame(plan).filter(kept))


def extent(catalyst: Catalyst, window: Grouped) -> Extent | None:
    """How long the windows are, by an example; None if that is not the same for all events."""
    made = _definitions(window.aggregate.child(), identity(window.attribute))
    if not made:
        return None
    panes = _example(catalyst, made[:2])
    if any(pane is None for pane in panes):
        return None
    (start, end), *others = [pane for pane in panes if pane is not None]
    size = end - start
    slide = start - others[0][0] if others else size
    return Extent(*(milliseconds(each) for each in (size, slide, start % slide)))


def _definitions(plan: LogicalPlan, wanted: int) -> list[Expression]:
    """The expressions that make a window's column: one, or one for each pane of a sliding one."""
    match name_of(plan):
        case "Project":
            for each in items(plan.projectList()):
                if identity(each) == wanted and name_of(each) == "Alias":
                    renamed = name_of(each.child()) == "AttributeReference"
                    if renamed:
                        return _definitions(plan.child(), identity(each.child()))
                    return [each.child()]
        case "Expand":
            for place, attribute in enumerate(items(plan.output())):
                if identity(attribute) == wanted:
                    panes = items(plan.projections())
                    if name_of(panes[0].apply(place)) == "CreateNamedStruct":
                        return [pane.apply(place) for pane in panes]
        case "Union":
            for place, attribute in enumerate(items(plan.output())):
                if identity(attribute) == wanted:
                    first = plan.children().apply(0)
                    return _definitions(first, identity(first.output().apply(place)))
    for child in items(plan.children()):
        if found := _definitions(child, wanted):
            return found
    return []


def _example(
    catalyst: Catalyst, made: list[Expression]
) -> list[tuple[timedelta, timedelta] | None]:
    """The windows of an event at some time: where they start and end, counted from 1970."""
    inputs = {identity(a): a for each in made for a in items(each.references().toSeq())}
    values = [
        F.lit(_SOME_TIME if of == "TIMESTAMP" else None).cast(of).alias(str(place))
        for place, of in ((place, str(a.dataType().sql())) for place, a in inputs.items())
    ]
    row = catalyst.analysed(catalyst.spark.range(1).select(*values))
    frame = catalyst.frame(catalyst.renamed(row, inputs.values()))
    structs = [catalyst.column(each) for each in made]
    micros = [
        F.unix_micros(struct.getField(edge)).alias(f"{edge}{number}")
        for number, struct in enumerate(structs)
        for edge in ("start", "end")
    ]
    found = [
        None if each is None else timedelta(microseconds=each)
        for each in frame.select(*micros).collect()[0]
    ]
    return [
        None if start is None or end is None else (start, end)
        for start, end in zip(found[::2], found[1::2], strict=True)
    ]
