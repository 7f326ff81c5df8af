"""Walks a user's plan down to our reader, and builds it anew with the hidden columns passed up."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import Column
from pyspark.sql import functions as F

from millstream.analyze.lineage.estimates import Unweighable, Weighed, weigh
from millstream.analyze.lineage.hidden_columns import Carried
from millstream.analyze.lineage.joins_and_unions import join, joins_streams, unite
from millstream.analyze.lineage.late_ids import late_ids
from millstream.analyze.records.reader import MARK, TIME
from millstream.analyze.spark.catalyst import (
    LOGICAL,
    Attribute,
    Catalyst,
    LogicalPlan,
    identity,
    items,
    leaves,
    name_of,
    references,
)
from millstream.analyze.spark.realtime import Refused
from millstream.analyze.windows.count_window import Event, columns, count_windows, counted_window
from millstream.analyze.windows.window import Grouped, grouped_window, in_time, without_late
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

# Nodes that give their child's columns, whatever these are.
_TRANSPARENT = {
    *(
        "Filter",
        "SubqueryAlias",
        "EventTimeWatermark",
        "UpdateEventTimeWatermarkColumn",
        "Deduplicate",
    ),
    *(
        "DeduplicateWithinWatermark",
        "ResolvedHint",
        "Repartition",
        "RepartitionByExpression",
        "Sort",
    ),
    *("LocalLimit", "GlobalLimit", "CollectMetrics", "Sample", "RebalancePartitions"),
    "PipeOperator",
}
# Of these, the ones that give other rows for a sample than a sample of their rows.
_UNWEIGHABLE = {
    "Deduplicate": "dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "LocalLimit": "a limit",
    "GlobalLimit": "a limit",
    "Sample": "a sample of its own",
}
_ONCE = ("Deduplicate", "DeduplicateWithinWatermark")  # of equal rows, the first
# An event's rows within rows (an explode in an explode): this many per level, on three levels.
_ROWS_PER_LEVEL, _LEVELS = 1 << 20, 3


class Carrier:
    """Walks one plan."""

    def __init__(self, catalyst: Catalyst, whole: bool, names_late: bool, weighs: bool) -> None:
        """The three are `trace`'s."""
        self._catalyst = catalyst
        self._whole = whole
        self._names_late = names_late
        self._weighs = weighs
        self._judges_alone = False  # whether it is beneath what takes no event that is late
        self.by_own_time: set[str] = set()  # the topics whose events are let in there, or not
        self.windows: list[tuple[Grouped, frozenset[str]]] = []  # by event time, of which topics

    def carry(self, plan: LogicalPlan) -> Carried:
        """The plan, built anew; Refused or Unweighable for what cannot be."""
        match name_of(plan):
            case "Project":
                return self._project(plan)
            case "View":  # a name for its child, which Spark drops too
                return self.carry(plan.child())
            case "Generate":
                return self._generate(plan)
            case "Expand":
                return self._expand(plan)
            case "Aggregate":
                return self._aggregate(plan)
            case "Distinct":
                return self._distinct(plan)
            case "Union":
                return unite(self._catalyst, plan, [*map(self.carry, items(plan.children()))])
            case "Join":
                alone = joins_streams(plan) or self._judges_alone
                sides = [self._beneath(side, alone) for side in (plan.left(), plan.right())]
                return join(self._catalyst, plan, *sides)
            case "LateralJoin":
                return self._lateral(plan)
            case name if name in _TRANSPARENT:
                child = self._deduplicated(plan) if name in _ONCE else self.carry(plan.child())
                if name in _UNWEIGHABLE:
                    child = child.without_weight(f"of a sample, {_UNWEIGHABLE[name]} gives others")
                if name == "Filter" and child.aggregate is not None:
                    child = replace(child, chooses=child.chooses or _may_change(plan, child))
                return replace(child, plan=self._over(plan, child.plan))
            case _ if not plan.isStreaming():
                return Carried(plan)
            case name:
                return Carried(plan, lost=f"rows cannot be followed through {_words(name)}")

    def _beneath(self, plan: LogicalPlan, alone: bool) -> Carried:
        """What goes into something that judges who is late: `alone`, by each event's own time."""
        outside, self._judges_alone = self._judges_alone, alone
        try:
            return self.carry(plan)
        finally:
            self._judges_alone = outside

    def _deduplicated(self, plan: LogicalPlan) -> Carried:
        """What goes into a plan that takes of equal rows the first one.

        If they tell the event time, Spark takes none that its watermark has passed, and forgets
        those that were before.
        """
        forgets = any(_tells_event_time(each) for each in items(plan.child().output()))
        return self._beneath(plan.child(), self._judges_alone or forgets)

    def _over(self, plan: LogicalPlan, *children: LogicalPlan) -> LogicalPlan:
        return plan.withNewChildren(self._catalyst.seq(children))

    def _project(self, plan: LogicalPlan) -> Carried:
        below = plan.child()
        marked = {a.name(): a for a in items(below.output()) if a.metadata().contains(MARK)}
        if {POSITION, RECEIVED, EVENT_TIME} <= marked.keys():
            child = Carried(
                below,
                sources=_topics(below) or frozenset({f"input {identity(marked[POSITION])}"}),
                position=marked[POSITION],
                received=marked[RECEIVED],
                event_time=marked[EVENT_TIME],
                closed=marked.get(CLOSED),
                watermark=marked.get(WATERMARK) if self._names_late else None,
                id=marked.get(ID) if self._names_late else None,
                weight=marked.get(WEIGHT) if self._weighs else None,
            )
            if self._judges_alone:
                child = self._let_in(child)
        else:
            child = self.carry(below)
        given = {identity(each.toAttribute()) for each in items(plan.projectList())}
        passed = [a for a in child.hidden().values() if identity(a) not in given]
        fresh = plan.copy(plan.projectList().appendedAll(self._catalyst.seq(passed)), child.plan)
        return replace(child, plan=fresh)

    def _let_in(self, events: Carried) -> Carried:
        """Of a stream's events, those that are in time; each by its own time alone."""
        self.by_own_time |= events.sources
        if events.closed is None or events.event_time is None:
            return events
        kept = in_time(self._catalyst, events.plan, events.event_time, events.closed)
        return replace(events, plan=kept, closed=None)

    def _generate(self, plan: LogicalPlan) -> Carried:
        catalyst, child = self._catalyst, self.carry(plan.child())
        kind = name_of(plan.generator())
        output = items(plan.generatorOutput())
        if child.weight is not None and kind in ("Explode", "PosExplode"):
            child = self._spread(child, catalyst.column(plan.generator().child()))
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
            why = f"the rows that {_words(kind)} makes of one event cannot be numbered"
            return replace(child, plan=made).without_position(why)
        return self._number(
            replace(child, plan=made), F.coalesce(catalyst.column(ordinal), F.lit(0))
        )

    def _lateral(self, plan: LogicalPlan) -> Carried:
        """Rows that a subquery makes of each row: as many as it likes."""
        child = self.carry(plan.child()).without_weight("of LATERAL, a row's rows are not counted")
        made = replace(child, plan=self._over(plan, child.plan))
        why = "the rows that LATERAL makes of one event cannot be numbered"
        return made.without_position(why)

    def _spread(self, child: Carried, made_of: Column) -> Carried:
        """Note how many rows are made of each row: all of them are kept, or none is."""
        size = F.greatest(F.size(made_of), F.lit(1)).cast("double")
        if child.spread is not None:
            size *= self._catalyst.column(child.spread)
        plan, added = self._catalyst.extend(child.plan, _spread=size)
        return replace(child, plan=plan, spread=added["_spread"])

    def _expand(self, plan: LogicalPlan) -> Carried:
        """Several rows of each row: sliding windows, and grouping sets."""
        catalyst, child = self._catalyst, self.carry(plan.child())
        known = {identity(attribute) for attribute in items(plan.output())}
        passed = [a for a in child.hidden().values() if identity(a) not in known]
        literal = catalyst.module("org.apache.spark.sql.catalyst.expressions.Literal")
        ordinal = items(catalyst.analysed(catalyst.frame(child.plan).select(F.lit(0))).output())[0]
        more = catalyst.seq(passed)
        # There may be hundreds of panes, and each call of Java's costs: none for what stays.
        projections = [
            projection.appendedAll(more).appended(literal.apply(number))
            for number, projection in enumerate(items(plan.projections()))
        ]
        output = catalyst.seq([*items(plan.output()), *passed, ordinal])
        fresh = plan.copy(catalyst.seq(projections), output, child.plan)
        made = replace(child, plan=fresh, fanned=True)
        return self._number(made, catalyst.column(ordinal))

    def _number(self, made: Carried, ordinal: Column) -> Carried:
        """Add the number of a row among those that were made of one row."""
        if made.position is None:
            return made
        if made.levels == _LEVELS:
            return made.without_position(f"it makes several rows of one {_LEVELS + 1} times over")
        row = ordinal.cast("bigint")
        if made.row is not None:
            row = self._catalyst.column(made.row) * F.lit(_ROWS_PER_LEVEL) + row
        plan, added = self._catalyst.extend(made.plan, _row=row)
        return replace(made, plan=plan, row=added["_row"], levels=made.levels + 1)

    def _aggregate(self, plan: LogicalPlan) -> Carried:
        catalyst, window = self._catalyst, grouped_window(plan)
        is_judged_here = window is not None and window.time == "event"
        child = self._beneath(plan.child(), self._judges_alone and not is_judged_here)
        if not plan.isStreaming() and not child.sources:
            return Carried(plan)
        if counted_window(plan) is not None:
            if self._weighs:
                raise Unweighable("of a sample, windows of so many events hold others")
            return self._count(plan, child)
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
        weighed = self._weigh(plan, child, window) if self._weighs else None
        own = items(plan.aggregateExpressions()) if weighed is None else weighed.expressions
        errors = {} if weighed is None else weighed.errors
        made = plan.copy(
            plan.groupingExpressions(),
            catalyst.seq([*own, *added, *errors.values()]),
            child.plan,
            plan.hint(),
        )
        named = {alias.name(): alias.toAttribute() for alias in added}
        return Carried(
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

    def _weigh(self, plan: LogicalPlan, child: Carried, window: Grouped | None) -> Weighed:
        if window is not None and window.function == "session":
            raise Unweighable(
                "of a sample, sessions fall apart, because the events between are not in"
            )
        if child.weight is None:
            raise Unweighable(child.unweighed or child.lost or "its events have no weights")
        if child.position is None:
            raise Unweighable(f"an event's rows cannot be told apart: {child.lost}")
        groups = [str(each.sql()) for each in items(plan.groupingExpressions())]
        if child.fanned and window is None and "spark_grouping_id" not in groups:
            why = "several windows of one event are put together, which a sample has all or none of"
            raise Unweighable(why, "group by the window too, or leave shed out")
        return weigh(self._catalyst, plan, child.plan, child.weight, child.spread)

    def _count(self, plan: LogicalPlan, child: Carried) -> Carried:
        if child.position is None or len(child.sources) != 1:
            why = child.lost or "it puts several inputs together, which have no order in common"
            raise Refused(f"its events cannot be counted for windows: {why}")
        assert child.received is not None
        assert child.event_time is not None
        event = Event(child.position, child.row, child.received, child.event_time)
        counted = count_windows(self._catalyst, plan, child.plan, event, self._whole)
        return Carried(
            counted.plan, child.sources, levels=child.levels, counted=counted, **columns(counted)
        )

    def _distinct(self, plan: LogicalPlan) -> Carried:
        """Rows that differ in the user's columns; the hidden ones must not make a difference."""
        child = self._deduplicated(plan).without_weight("of a sample, DISTINCT gives others")
        deduplicate = self._catalyst.java(f"{LOGICAL}.Deduplicate")
        keys = plan.child().output()
        return replace(child, plan=deduplicate(keys, child.plan, self._catalyst.none))


def _may_change(plan: LogicalPlan, groups: Carried) -> bool:
    """Whether a Filter asks for more of a group than what it is grouped by, which stays."""
    assert groups.aggregate is not None
    staying = [references(each) for each in items(groups.aggregate.groupingExpressions())]
    return not references(plan.condition()) <= set[int]().union(*staying)


def _tells_event_time(attribute: Attribute) -> bool:
    """Whether it is the user's column with the time that Spark's watermark follows."""
    metadata = attribute.metadata()
    is_marked = metadata.contains(TIME) and not metadata.contains(MARK)
    return is_marked and metadata.getString(TIME) == "event"


def _topics(plan: LogicalPlan) -> frozenset[str]:
    relations = [leaf for leaf in leaves(plan) if name_of(leaf) == "StreamingRelationV2"]
    return frozenset(str(leaf.extraOptions().get("subscribe")) for leaf in relations)


def _words(name: str) -> str:
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
    return known.get(name, name)
