"""Rewrites a user's plan so that the hidden columns reach the result."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import Column
from pyspark.sql import functions as F

from millstream.analyze.lineage.estimates import Estimates, NotEstimable, estimate
from millstream.analyze.lineage.hidden_columns import RewrittenPlan
from millstream.analyze.lineage.joins_and_unions import join, joins_streams, union
from millstream.analyze.lineage.late_ids import late_ids
from millstream.analyze.records.reader import TIME_KEY, is_hidden
from millstream.analyze.spark.catalyst import (
    LOGICAL,
    Attribute,
    Catalyst,
    LogicalPlan,
    identity,
    items,
    name_of,
    references,
    streamed_topics,
)
from millstream.analyze.spark.realtime import UnsupportedQuery
from millstream.analyze.windows.count_rewrite import EventColumns, count_windows, counted_window
from millstream.analyze.windows.count_window import CountWindowSpec
from millstream.analyze.windows.grouped_window import (
    GroupedWindow,
    grouped_window,
    in_time,
    without_late,
)
from millstream.values.hidden_columns import (
    CLOSED,
    EVENT_TIME,
    ID,
    LATE,
    POSITION,
    RECEIVED,
    REVISION,
    WATERMARK,
    WEIGHT,
)

# Nodes that have exactly their child's columns.
_TRANSPARENT = {
    "CollectMetrics",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "EventTimeWatermark",
    "Filter",
    "GlobalLimit",
    "LocalLimit",
    "PipeOperator",
    "RebalancePartitions",
    "Repartition",
    "RepartitionByExpression",
    "ResolvedHint",
    "Sample",
    "Sort",
    "SubqueryAlias",
    "UpdateEventTimeWatermarkColumn",
}
# Of these, the ones whose result over a sample is not a sample of their result.
_NOT_ESTIMABLE = {
    "Deduplicate": "dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "LocalLimit": "a limit",
    "GlobalLimit": "a limit",
    "Sample": "a sample of its own",
}
_DEDUPLICATING = ("Deduplicate", "DeduplicateWithinWatermark")
# Row numbers of nested generators (an explode in an explode): so many per level, on three levels.
_ROWS_PER_LEVEL, _LEVELS = 1 << 20, 3


class PlanRewriter:
    """Rewrites one plan, from the top down to the reader and up again."""

    def __init__(self, catalyst: Catalyst, batch: bool, lists_late: bool, weighs: bool) -> None:
        """The options are those of `trace`."""
        self._catalyst = catalyst
        self._batch = batch
        self._lists_late = lists_late
        self._weighs = weighs
        self._filters_by_event_time = False  # below a node that accepts no late events
        self.late_by_event_time: set[str] = set()  # the topics whose events are filtered like that
        self.windows: list[
            tuple[GroupedWindow, frozenset[str]]
        ] = []  # by event time, with their topics

    def rewrite(self, plan: LogicalPlan) -> RewrittenPlan:
        """The rewritten plan; UnsupportedQuery or NotEstimable if there is none."""
        match name_of(plan):
            case "Project":
                return self._project(plan)
            case "View":  # only a name for its child
                return self.rewrite(plan.child())
            case "Generate":
                return self._generate(plan)
            case "Expand":
                return self._expand(plan)
            case "Aggregate":
                return self._aggregate(plan)
            case "Distinct":
                return self._distinct(plan)
            case "Union":
                return union(self._catalyst, plan, [*map(self.rewrite, items(plan.children()))])
            case "Join":
                filters = joins_streams(plan) or self._filters_by_event_time
                sides = [self._below(side, filters) for side in (plan.left(), plan.right())]
                return join(self._catalyst, plan, *sides)
            case "LateralJoin":
                return self._lateral(plan)
            case name if name in _TRANSPARENT:
                if name in _DEDUPLICATING:
                    child = self._below_deduplication(plan)
                else:
                    child = self.rewrite(plan.child())
                if name in _NOT_ESTIMABLE:
                    child = child.without_weight(_other_rows(_NOT_ESTIMABLE[name]))
                if name == "Filter" and child.aggregate is not None:
                    filters = child.filters_groups or _filters_by_aggregate(plan, child)
                    child = replace(child, filters_groups=filters)
                return replace(child, plan=self._over(plan, child.plan))
            case _ if not plan.isStreaming():
                return RewrittenPlan(plan)
            case name:
                why = f"rows cannot be followed through {_call_name(name)}"
                return RewrittenPlan(plan, why_no_position=why)

    def _below(self, plan: LogicalPlan, filters_by_event_time: bool) -> RewrittenPlan:
        """The rewritten input of a node that decides how late events are filtered below it."""
        outside, self._filters_by_event_time = self._filters_by_event_time, filters_by_event_time
        try:
            return self.rewrite(plan)
        finally:
            self._filters_by_event_time = outside

    def _below_deduplication(self, plan: LogicalPlan) -> RewrittenPlan:
        """The rewritten input of a deduplication.

        If the rows have the event time, Spark drops those behind its watermark and deletes their
        state.
        """
        drops_late = any(_is_event_time(each) for each in items(plan.child().output()))
        return self._below(plan.child(), self._filters_by_event_time or drops_late)

    def _over(self, plan: LogicalPlan, *children: LogicalPlan) -> LogicalPlan:
        return plan.withNewChildren(self._catalyst.seq(children))

    def _project(self, plan: LogicalPlan) -> RewrittenPlan:
        below = plan.child()
        marked = {a.name(): a for a in items(below.output()) if is_hidden(a)}
        if {POSITION, RECEIVED, EVENT_TIME} <= marked.keys():
            child = RewrittenPlan(
                below,
                sources=frozenset(
                    streamed_topics(below) or [f"input {identity(marked[POSITION])}"]
                ),
                position=marked[POSITION],
                received=marked[RECEIVED],
                event_time=marked[EVENT_TIME],
                closed=marked.get(CLOSED),
                watermark=marked.get(WATERMARK) if self._lists_late else None,
                id=marked.get(ID) if self._lists_late else None,
                weight=marked.get(WEIGHT) if self._weighs else None,
            )
            if self._filters_by_event_time:
                child = self._without_late(child)
        else:
            child = self.rewrite(below)
        given = {identity(each.toAttribute()) for each in items(plan.projectList())}
        passed = [a for a in child.hidden() if identity(a) not in given]
        fresh = plan.copy(plan.projectList().appendedAll(self._catalyst.seq(passed)), child.plan)
        return replace(child, plan=fresh)

    def _without_late(self, events: RewrittenPlan) -> RewrittenPlan:
        """A stream's events without those that are late by their event time."""
        self.late_by_event_time |= events.sources
        if events.closed is None or events.event_time is None:
            return events
        kept = in_time(self._catalyst, events.plan, events.event_time, events.closed)
        return replace(events, plan=kept, closed=None)

    def _generate(self, plan: LogicalPlan) -> RewrittenPlan:
        catalyst, child = self._catalyst, self.rewrite(plan.child())
        kind = name_of(plan.generator())
        output = items(plan.generatorOutput())
        if child.weight is not None and kind in ("Explode", "PosExplode"):
            child = self._count_rows(child, catalyst.column(plan.generator().child()))
        if child.position is None:
            return replace(child, plan=self._over(plan, child.plan))
        if kind == "PosExplode":
            ordinal, made = output[0], self._over(plan, child.plan)
        elif kind == "Explode":
            array = catalyst.column(plan.generator().child())
            numbered = catalyst.analysed(catalyst.frame(child.plan).select(F.posexplode(array)))
            generate = numbered.child()
            ordinal = items(generate.generatorOutput())[0].withNullability(plan.outer())
            made = plan.copy(
                generate.generator(),
                plan.unrequiredChildIndex(),
                plan.outer(),
                plan.qualifier(),
                catalyst.seq([ordinal, *output]),
                child.plan,
            )
        else:
            made = self._over(plan, child.plan)
            why = f"the rows that {_call_name(kind)} makes of one event cannot be numbered"
            return replace(child, plan=made).without_position(why)
        return self._number(
            replace(child, plan=made), F.coalesce(catalyst.column(ordinal), F.lit(0))
        )

    def _lateral(self, plan: LogicalPlan) -> RewrittenPlan:
        """A subquery makes any number of rows of each row."""
        child = self.rewrite(plan.child()).without_weight(
            "the number of rows that LATERAL makes of one event is not known"
        )
        made = replace(child, plan=self._over(plan, child.plan))
        return made.without_position("the rows that LATERAL makes of one event cannot be numbered")

    def _count_rows(self, child: RewrittenPlan, array: Column) -> RewrittenPlan:
        """Adds the number of rows that are made of each event."""
        size = F.greatest(F.size(array), F.lit(1)).cast("double")
        if child.spread is not None:
            size *= self._catalyst.column(child.spread)
        plan, added = self._catalyst.extend(child.plan, _spread=size)
        return replace(child, plan=plan, spread=added["_spread"])

    def _expand(self, plan: LogicalPlan) -> RewrittenPlan:
        """Sliding windows and grouping sets make several rows of each row."""
        catalyst, child = self._catalyst, self.rewrite(plan.child())
        known = {identity(attribute) for attribute in items(plan.output())}
        passed = [a for a in child.hidden() if identity(a) not in known]
        literal = catalyst.module("org.apache.spark.sql.catalyst.expressions.Literal")
        ordinal = items(catalyst.analysed(catalyst.frame(child.plan).select(F.lit(0))).output())[0]
        more = catalyst.seq(passed)
        # There may be hundreds of projections, and each call to the JVM costs.
        projections = [
            projection.appendedAll(more).appended(literal.apply(number))
            for number, projection in enumerate(items(plan.projections()))
        ]
        output = catalyst.seq([*items(plan.output()), *passed, ordinal])
        fresh = plan.copy(catalyst.seq(projections), output, child.plan)
        made = replace(child, plan=fresh, is_expanded=True)
        return self._number(made, catalyst.column(ordinal))

    def _number(self, made: RewrittenPlan, ordinal: Column) -> RewrittenPlan:
        """Adds the number of a row among the rows that were made of one row."""
        if made.position is None:
            return made
        if made.levels == _LEVELS:
            return made.without_position(f"it makes several rows of one {_LEVELS + 1} times over")
        row = ordinal.cast("bigint")
        if made.row is not None:
            row = self._catalyst.column(made.row) * F.lit(_ROWS_PER_LEVEL) + row
        plan, added = self._catalyst.extend(made.plan, _row=row)
        return replace(made, plan=plan, row=added["_row"], levels=made.levels + 1)

    def _aggregate(self, plan: LogicalPlan) -> RewrittenPlan:
        catalyst, window = self._catalyst, grouped_window(plan)
        filters_here = window is not None and window.time == "event"
        child = self._below(plan.child(), self._filters_by_event_time and not filters_here)
        if not plan.isStreaming() and not child.sources:
            return RewrittenPlan(plan)
        if counted_window(plan) is not None:
            if self._weighs:
                raise NotEstimable(CountWindowSpec.why_no_sample)
            return self._count_windows(plan, child)
        if window is not None and window.time == "event":
            if child.closed is not None:
                kept = without_late(catalyst, child.plan, window.attribute, child.closed)
                child, window = replace(child, plan=kept), replace(window, filters_late=True)
            self.windows.append((window, child.sources))
        wanted = {REVISION: F.count(F.lit(1))}
        if child.received is not None:
            wanted[RECEIVED] = F.max(catalyst.column(child.received))
        if child.event_time is not None:
            wanted[EVENT_TIME] = F.max(catalyst.column(child.event_time))
        if window is not None and child.watermark is not None and child.id is not None:
            wanted[LATE] = late_ids(catalyst, window.attribute, child.watermark, child.id)
        added = catalyst.aggregates(child.plan, **wanted)
        own, errors = items(plan.aggregateExpressions()), {}
        if self._weighs:
            estimates = self._estimate(plan, child, window)
            own, errors = estimates.expressions, estimates.errors
        made = plan.copy(
            plan.groupingExpressions(),
            catalyst.seq([*own, *added, *errors.values()]),
            child.plan,
            plan.hint(),
        )
        named = {alias.name(): alias.toAttribute() for alias in added}
        return RewrittenPlan(
            made,
            sources=child.sources,
            received=named.get(RECEIVED),
            event_time=named.get(EVENT_TIME),
            revision=named[REVISION],
            aggregate=plan,
            window=window,
            late=named.get(LATE),
            errors={each: error.toAttribute() for each, error in errors.items()},
        )

    def _estimate(
        self, plan: LogicalPlan, child: RewrittenPlan, window: GroupedWindow | None
    ) -> Estimates:
        if window is not None and window.kind.why_no_sample:
            raise NotEstimable(window.kind.why_no_sample)
        why_not = child.why_no_position
        if child.weight is None:
            raise NotEstimable(child.why_no_weight or why_not or "its events have no weights")
        if child.position is None:
            raise NotEstimable(f"an event's rows cannot be distinguished: {why_not}")
        groups = [str(each.sql()) for each in items(plan.groupingExpressions())]
        if child.is_expanded and window is None and "spark_grouping_id" not in groups:
            why = "it groups several windows of one event, which are all in a sample or none is"
            raise NotEstimable(why, "group by the window too, or leave shed out")
        return estimate(self._catalyst, plan, child.plan, child.weight, child.spread)

    def _count_windows(self, plan: LogicalPlan, child: RewrittenPlan) -> RewrittenPlan:
        if child.position is None or len(child.sources) != 1:
            why = child.why_no_position or "its inputs have no order in common"
            raise UnsupportedQuery(f"its events cannot be counted for windows: {why}")
        assert child.received is not None
        assert child.event_time is not None
        event = EventColumns(child.position, child.row, child.received, child.event_time)
        counted = count_windows(self._catalyst, plan, child.plan, event, self._batch)
        return RewrittenPlan(
            counted.plan, child.sources, levels=child.levels, counted=counted, **counted.hidden
        )

    def _distinct(self, plan: LogicalPlan) -> RewrittenPlan:
        """Rows that differ in the user's columns, whatever their hidden columns."""
        child = self._below_deduplication(plan).without_weight(_other_rows("DISTINCT"))
        deduplicate = self._catalyst.java(f"{LOGICAL}.Deduplicate")
        keys = plan.child().output()
        return replace(child, plan=deduplicate(keys, child.plan, self._catalyst.none))


def _other_rows(operation: str) -> str:
    return f"{operation} over a sample gives other rows"


def _filters_by_aggregate(plan: LogicalPlan, groups: RewrittenPlan) -> bool:
    """Whether a Filter uses more than the columns that are grouped by, which never change."""
    assert groups.aggregate is not None
    staying = [references(each) for each in items(groups.aggregate.groupingExpressions())]
    return not references(plan.condition()) <= set[int]().union(*staying)


def _is_event_time(attribute: Attribute) -> bool:
    """Whether it is the user's event time column, which Spark's watermark follows."""
    metadata = attribute.metadata()
    is_time = metadata.contains(TIME_KEY) and not is_hidden(attribute)
    return is_time and metadata.getString(TIME_KEY) == "event"


def _call_name(node: str) -> str:
    """What a user calls a node of a plan."""
    known = {
        "Inline": "inline()",
        "Stack": "stack()",
        "JsonTuple": "json_tuple()",
        "MapInPandas": "mapInPandas",
        "MapInArrow": "mapInArrow",
        "PythonMapInArrow": "mapInArrow",
        "TransformWithStateInPySpark": "transformWithState",
        "FlatMapGroupsInPandas": "applyInPandas",
        "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
        "UserDefinedGenerator": "a generator of your own",
    }
    return known.get(node, node)
