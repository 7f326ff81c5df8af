"""Windows by time in a user's Spark plan: their kind, their size, and a filter for late events."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

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
from millstream.analyze.windows.session_window import SessionWindowSpec
from millstream.analyze.windows.time_window import TimeWindowSpec
from millstream.analyze.windows.window_spec import Extent
from millstream.syntax.duration import milliseconds

TimeKind = type[TimeWindowSpec] | type[SessionWindowSpec]

# Metadata that Spark adds to the column that window() or session_window() makes.
_KINDS: dict[str, TimeKind] = {
    "spark.timeWindow": TimeWindowSpec,
    "spark.sessionWindow": SessionWindowSpec,
}
_EXAMPLE_TIME = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class GroupedWindow:
    """The window that an Aggregate groups by."""

    attribute: Attribute
    kind: TimeKind
    time: TimeDomain | None  # None: the column is neither of the stream's times
    aggregate: LogicalPlan
    filters_late: bool = False  # whether late events are left out

    @property
    def lacks_groups(self) -> bool:
        """Whether the Aggregate groups by nothing else, although this kind of window needs it."""
        return self.kind.needs_groups and self.aggregate.groupingExpressions().size() == 1


def grouped_window(aggregate: LogicalPlan) -> GroupedWindow | None:
    """The window by time that an Aggregate groups by, if any."""
    for group in items(aggregate.groupingExpressions()):
        for attribute in items(group.references().toSeq()):
            metadata = attribute.metadata()
            for mark, kind in _KINDS.items():
                if metadata.contains(mark):
                    time = metadata.getString(TIME_KEY) if metadata.contains(TIME_KEY) else None
                    return GroupedWindow(attribute, kind, time, aggregate)
    return None


def without_late(
    catalyst: Catalyst, plan: LogicalPlan, window: Attribute, closed: Attribute
) -> LogicalPlan:
    """The plan without the rows of events that came after their window was closed."""
    ends, until = catalyst.column(window).getField("end"), catalyst.column(closed)
    return catalyst.analysed(catalyst.frame(plan).filter(until.isNull() | (until < ends)))


def in_time(
    catalyst: Catalyst, plan: LogicalPlan, event_time: Attribute, closed: Attribute
) -> LogicalPlan:
    """The plan without events that have no event time or came too long after it.

    Times are compared in milliseconds, as `LateEvents` does.
    """
    at, until = (F.unix_millis(catalyst.column(each)) for each in (event_time, closed))
    kept = at.isNotNull() & (until.isNull() | (until < at))
    return catalyst.analysed(catalyst.frame(plan).filter(kept))


def extent(catalyst: Catalyst, grouped: GroupedWindow) -> Extent | None:
    """The size of the windows, by an example; None if it differs from event to event."""
    made = _definitions(grouped.aggregate.child(), identity(grouped.attribute))
    if not made:
        return None
    windows = _example(catalyst, made[:2])
    if any(window is None for window in windows):
        return None
    (start, end), *others = [window for window in windows if window is not None]
    size = end - start
    slide = start - others[0][0] if others else size
    return Extent(*(milliseconds(each) for each in (size, slide, start % slide)))


def _definitions(plan: LogicalPlan, wanted: int) -> list[Expression]:
    """The expressions that make a window's column: one for each window that an event is in."""
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
                    projections = items(plan.projections())
                    if name_of(projections[0].apply(place)) == "CreateNamedStruct":
                        return [each.apply(place) for each in projections]
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
    """Start and end of the windows of an event at an example time, counted from 1970."""
    inputs = {identity(a): a for each in made for a in items(each.references().toSeq())}
    values = [
        F.lit(_EXAMPLE_TIME if of == "TIMESTAMP" else None).cast(of).alias(str(place))
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
