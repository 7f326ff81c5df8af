"""Hidden columns through a user's plan: how new each result row is, and which event it comes from.

A grouped result gets `_revision` (how many rows are in: it only grows), `_received_at` and
`_event_time` (of the newest event that is in). Any other result keeps its event's `_position`, to
which the number of the row among the event's rows is added where a plan makes several of one. The
user writes nothing for this: their analysed plan is walked from the top down to our reader, and
built anew with the columns passed up. On the way, events that are late for the window that they
would be counted in are kept out of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millstream.analyze.catalyst import (
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
from millstream.analyze.count_window import (
    Counted,
    Event,
    columns,
    count_windows,
    counted_window,
)
from millstream.analyze.panes.additive import Nature, natures
from millstream.analyze.panes.late import LATE, late_ids
from millstream.analyze.reader import (
    CLOSED,
    EVENT_TIME,
    MARK,
    POSITION,
    RECEIVED,
    REVISION,
    WATERMARK,
    WEIGHT,
)
from millstream.analyze.realtime import Refused
from millstream.analyze.shedding.weigh import Unweighable, Weighed, errors_shown, weigh
from millstream.analyze.window import Grouped, grouped_window, without_late
from millstream.store.life import ERROR
from millstream.windows import marked

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
}
# Of these, the ones that give other rows for a sample than a sample of their rows.
_UNWEIGHABLE = {
    "Deduplicate": "dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "LocalLimit": "a limit",
    "GlobalLimit": "a limit",
    "Sample": "a sample of its own",
}
# An event's rows within rows (an explode in an explode): this many per level, on three levels.
_ROWS_PER_LEVEL, _LEVELS = 1 << 20, 3

Lineage = Literal["revision", "position", "none"]


@dataclass(frozen=True, slots=True)
class Carried:
    """A plan that gives at least the columns it gave, and the hidden ones."""

    plan: LogicalPlan
    sources: frozenset[str] = frozenset()  # the inputs that its rows come from
    position: Attribute | None = None  # which event; None once that can't be told
    row: Attribute | None = None  # which of the event's rows; None: there is but one
    levels: int = 0  # how many times one row was made into several
    received: Attribute | None = None
    event_time: Attribute | None = None
    closed: Attribute | None = None  # the windows that an event is too late for, by their end
    revision: Attribute | None = None
    aggregate: LogicalPlan | None = None  # of the user's plan, that gave the revision
    window: Grouped | None = None  # what the aggregate groups by, if that is a time window
    counted: Counted | None = None  # or if that is a window of so many events
    watermark: Attribute | None = None  # that an event came behind, and its id, if late events
    id: Attribute | None = None  # are to be named
    late: Attribute | None = None  # the ids of those that are in a window's row
    lost: str = ""  # why there is no position
    weight: Attribute | None = None  # how many events this one stands for
    spread: Attribute | None = None  # how many rows an event was made into; None: one
    fanned: bool = False  # it is in several windows, or grouping sets, each in a row of its own
    unweighed: str = ""  # why there is no weight
    errors: Mapping[int, Attribute] = field(default_factory=dict)  # of an aggregate's columns

    def hidden(self) -> dict[str, Attribute]:
        named = {
            "position": self.position,
            "row": self.row,
            "received": self.received,
            "event_time": self.event_time,
            "closed": self.closed,
            "watermark": self.watermark,
            "id": self.id,
            "late": self.late,
            "revision": self.revision,
            "weight": self.weight,
            "spread": self.spread,
            **{f"error of {each}": attribute for each, attribute in self.errors.items()},
        }
        return {name: attribute for name, attribute in named.items() if attribute is not None}

    def without_position(self, why: str) -> Carried:
        return replace(self, position=None, row=None, lost=self.lost or why)

    def without_weight(self, why: str) -> Carried:
        return replace(self, weight=None, spread=None, unweighed=self.unweighed or why)


@dataclass(frozen=True, slots=True)
class Traced:
    """A user's result with its lineage."""

    frame: DataFrame  # the user's columns, then `_revision` or `_position`, and the times
    columns: tuple[str, ...]  # the user's
    lineage: Lineage
    lost: str  # why there is neither, if so
    grouping: (
        tuple[str, ...] | None
    )  # the result's columns that tell groups apart; None: not grouped
    ungrouped_key: tuple[str, ...]  # what the key lacks to tell groups apart
    window: Grouped | None  # that the result is grouped by
    counted: Counted | None  # likewise, by a window of so many events
    sources: frozenset[str]  # the topics that its rows come from
    natures: Mapping[str, Nature]  # of a grouped result's columns: which of them add up
    weighed: tuple[str, ...]  # the columns that are estimates where events were shed


def trace(
    frame: DataFrame,
    key: tuple[str, ...] | None,
    *,
    whole: bool | None = None,
    names_late: bool = False,
    weighs: bool = False,
) -> Traced:
    """The user's result with hidden columns behind its own; Refused for what no mode can do.

    `whole`: for a batch over all events, which a frame that is not streaming is in any case.
    `names_late`: among the hidden columns are the ids of the late events in a window's row.
    `weighs`: its counts, sums and averages are weighed, and `_error` tells how far off they may be.
    """
    catalyst = Catalyst.of(frame)
    plan = _inlined(catalyst, catalyst.analysed(frame))
    whole = not frame.isStreaming if whole is None else whole
    carried = _Carrier(catalyst, whole, names_late, weighs).carry(plan)
    if weighs and carried.aggregate is None:
        raise Unweighable("it does not group, and only counts and sums of groups can be estimated")
    if carried.counted is not None:
        # Rows that do not change: known by their event, or by their number among those of the key.
        carried = replace(carried, revision=None) if key is None else carried
    if marked(str(carried.plan.toString())):
        raise Refused("by_count(…), or count_window(…), is no column to select: group by it")
    output = items(plan.output())
    columns = [catalyst.column(attribute) for attribute in output]
    names = tuple(str(attribute.name()) for attribute in output)
    aggregate = carried.aggregate
    errors = errors_shown(plan, aggregate, carried.errors) if carried.errors else {}
    hidden = [*_columns(catalyst, carried), *_errors(catalyst, errors)]
    result = catalyst.frame(carried.plan).select(*columns, *hidden)
    groups = None if aggregate is None else _grouping(catalyst, plan, output, aggregate)
    lineage: Lineage = "none"
    if carried.revision is not None:
        lineage = "revision"
    elif carried.position is not None:
        lineage = "position"
    return Traced(
        result,
        names,
        lineage,
        "" if lineage != "none" else carried.lost,
        tuple(groups) if groups is not None else None,
        _missing(groups or {}, key or ()),
        carried.window,
        carried.counted,
        carried.sources,
        {} if aggregate is None else natures(catalyst, plan, output, aggregate),
        tuple(errors),
    )


def _inlined(catalyst: Catalyst, plan: LogicalPlan) -> LogicalPlan:
    """The plan with what WITH names in the places where it is named."""
    patterns = catalyst.module("org.apache.spark.sql.catalyst.trees.TreePattern")
    if not plan.containsPattern(patterns.CTE()):
        return plan
    inline = catalyst.java("org.apache.spark.sql.catalyst.optimizer.InlineCTE")
    return inline(True, False, False).apply(plan)


def _columns(catalyst: Catalyst, carried: Carried) -> list[Column]:
    def column(attribute: Attribute | None, kind: str) -> Column:
        return F.lit(None).cast(kind) if attribute is None else catalyst.column(attribute)

    hidden = []
    if carried.revision is not None:
        hidden.append(catalyst.column(carried.revision).alias(REVISION))
    elif carried.position is not None:
        position = catalyst.column(carried.position)
        row = F.lit(0) if carried.row is None else catalyst.column(carried.row)
        parts = [position.getField(name).alias(name) for name in ("source", "partition", "offset")]
        hidden.append(F.struct(*parts, row.cast("bigint").alias("row")).alias(POSITION))
    hidden.append(column(carried.received, "timestamp").alias(RECEIVED))
    hidden.append(column(carried.event_time, "timestamp").alias(EVENT_TIME))
    if carried.late is not None:
        hidden.append(catalyst.column(carried.late).alias(LATE))
    return hidden


def _errors(catalyst: Catalyst, errors: Mapping[str, Attribute]) -> list[Column]:
    told = [catalyst.column(attribute).alias(name) for name, attribute in errors.items()]
    return [F.struct(*told).alias(ERROR)] if told else []


class _Carrier:
    """Walks one plan."""

    def __init__(self, catalyst: Catalyst, whole: bool, names_late: bool, weighs: bool) -> None:
        self._catalyst = catalyst
        self._whole = whole
        self._names_late = names_late
        self._weighs = weighs

    def carry(self, plan: LogicalPlan) -> Carried:
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
                return self._union(plan)
            case "Join":
                return self._join(plan)
            case name if name in _TRANSPARENT:
                child = self.carry(plan.child())
                if name in _UNWEIGHABLE:
                    child = child.without_weight(f"of a sample, {_UNWEIGHABLE[name]} gives others")
                return replace(child, plan=self._over(plan, child.plan))
            case _ if not plan.isStreaming():
                return Carried(plan)
            case name:
                return Carried(plan, lost=f"rows cannot be followed through {_words(name)}")

    def _over(self, plan: LogicalPlan, *children: LogicalPlan) -> LogicalPlan:
        return plan.withNewChildren(self._catalyst.seq(children))

    def _only(self, plan: LogicalPlan, like: LogicalPlan) -> LogicalPlan:
        """The columns that `like` gives, and no more, of a plan that gives at least these."""
        kept = [self._catalyst.column(attribute) for attribute in items(like.output())]
        return self._catalyst.analysed(self._catalyst.frame(plan).select(*kept))

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
                id=marked.get("_id") if self._names_late else None,
                weight=marked.get(WEIGHT) if self._weighs else None,
            )
        else:
            child = self.carry(below)
        given = {identity(each.toAttribute()) for each in items(plan.projectList())}
        passed = [a for a in child.hidden().values() if identity(a) not in given]
        fresh = plan.copy(plan.projectList().appendedAll(self._catalyst.seq(passed)), child.plan)
        return replace(child, plan=fresh)

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
        projections = [
            catalyst.seq([*items(projection), *passed, literal.apply(number)])
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
        catalyst, child = self._catalyst, self.carry(plan.child())
        if not plan.isStreaming() and not child.sources:
            return Carried(plan)
        if counted_window(plan) is not None:
            if self._weighs:
                raise Unweighable("of a sample, windows of so many events hold others")
            return self._count(plan, child)
        window = grouped_window(plan)
        if window is not None and window.time == "event" and child.closed is not None:
            kept = without_late(catalyst, child.plan, window.attribute, child.closed)
            child, window = replace(child, plan=kept), replace(window, filters_late=True)
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
        child = self.carry(plan.child()).without_weight("of a sample, DISTINCT gives others")
        deduplicate = self._catalyst.java(f"{LOGICAL}.Deduplicate")
        keys = plan.child().output()
        return replace(child, plan=deduplicate(keys, child.plan, self._catalyst.none))

    def _union(self, plan: LogicalPlan) -> Carried:
        catalyst = self._catalyst
        branches = [self.carry(child) for child in items(plan.children())]
        sources = frozenset[str]().union(*(branch.sources for branch in branches))
        if any(branch.revision is not None for branch in branches):
            alike = [
                self._only(branch.plan, child)
                for branch, child in zip(branches, items(plan.children()), strict=True)
            ]
            return Carried(
                self._over(plan, *alike), sources, lost="it puts grouped results together"
            )
        lost = next((branch.lost for branch in branches if branch.position is None), "")
        is_weighed = all(branch.weight is not None for branch in branches)
        fresh, seen = [], set[str]()
        for number, (child, branch) in enumerate(
            zip(items(plan.children()), branches, strict=True), start=1
        ):
            # Rows of the same event from two branches are two results, and told apart by the label.
            label = f"#{number}" if branch.sources & seen else ""
            seen |= branch.sources
            kept = [catalyst.column(attribute) for attribute in items(child.output())]
            hidden = _union_columns(catalyst, branch, label)
            if is_weighed:
                ways = sum(bool(branch.sources & other.sources) for other in branches)
                hidden += _union_weights(catalyst, branch, ways)
            fresh.append(catalyst.analysed(catalyst.frame(branch.plan).select(*kept, *hidden)))
        made = plan.copy(catalyst.seq(fresh), plan.byName(), plan.allowMissingCol())
        place = len(items(plan.output()))
        position, row, received, event_time, closed, *weights = items(made.output())[place:]
        union = Carried(
            made,
            sources,
            position,
            row,
            max(branch.levels for branch in branches),
            received,
            event_time,
            closed,
            **dict(zip(("weight", "spread"), weights, strict=False)),
            unweighed=next((b.unweighed for b in branches if b.weight is None), ""),
        )
        return union.without_position(lost) if lost else union

    def _join(self, plan: LogicalPlan) -> Carried:
        left, right = self.carry(plan.left()), self.carry(plan.right())
        made = plan.copy(left.plan, right.plan, plan.joinType(), plan.condition(), plan.hint())
        kind = name_of(plan.joinType()).rstrip("$")
        if _flows(plan.left(), left) and _flows(plan.right(), right):
            return self._join_of_streams(made, left, right, kind)
        streaming, static = (
            (left, plan.right()) if _flows(plan.left(), left) else (right, plan.left())
        )
        carried = replace(streaming, plan=made)
        if kind in ("LeftSemi", "LeftAnti") or _at_most_one(plan, static):
            return carried
        why = (
            "it joins reference data of which several rows may fit one event; "
            "dropDuplicates([…]) by the joined columns on that data says that only one does"
        )
        return carried.without_position(why)

    def _join_of_streams(
        self, made: LogicalPlan, left: Carried, right: Carried, kind: str
    ) -> Carried:
        why = "its rows come from two events each"
        if kind in ("LeftSemi", "LeftAnti"):
            return replace(left, plan=made).without_position(why)
        catalyst = self._catalyst
        times = {}
        for name, one, other in (
            (RECEIVED, left.received, right.received),
            (EVENT_TIME, left.event_time, right.event_time),
            (CLOSED, left.closed, right.closed),
        ):
            both = [catalyst.column(each) for each in (one, other) if each is not None]
            if len(both) == 2:
                times[name] = F.greatest(*both)
            elif both and name == CLOSED:
                times[name] = both[0]
        plan, added = catalyst.extend(made, **times)
        return Carried(
            plan,
            left.sources | right.sources,
            received=added.get(RECEIVED),
            event_time=added.get(EVENT_TIME),
            closed=added.get(CLOSED),
            lost=why,
        )


def _union_columns(catalyst: Catalyst, branch: Carried, label: str) -> list[Column]:
    def column(attribute: Attribute | None, kind: str) -> Column:
        return F.lit(None).cast(kind) if attribute is None else catalyst.column(attribute)

    kind = "struct<source: string, partition: int, offset: bigint>"
    position = column(branch.position, kind)
    if label and branch.position is not None:
        source = F.concat(position.getField("source"), F.lit(label)).alias("source")
        rest = [position.getField(name).alias(name) for name in ("partition", "offset")]
        position = F.struct(source, *rest)
    row = F.coalesce(column(branch.row, "bigint"), F.lit(0).cast("bigint"))
    times = [
        column(each, "timestamp") for each in (branch.received, branch.event_time, branch.closed)
    ]
    named = zip(
        (position.cast(kind), row, *times),
        (POSITION, "_row", RECEIVED, EVENT_TIME, CLOSED),
        strict=True,
    )
    return [each.alias(name) for each, name in named]


def _union_weights(catalyst: Catalyst, branch: Carried, ways: int) -> list[Column]:
    """`ways`: through how many branches rows of one event may come, all of them or none."""
    spread = F.lit(float(ways))
    if branch.spread is not None:
        spread *= catalyst.column(branch.spread)
    return [catalyst.column(branch.weight).alias(WEIGHT), spread.alias("_spread")]


def _topics(plan: LogicalPlan) -> frozenset[str]:
    relations = [leaf for leaf in leaves(plan) if name_of(leaf) == "StreamingRelationV2"]
    return frozenset(str(leaf.extraOptions().get("subscribe")) for leaf in relations)


def _flows(plan: LogicalPlan, carried: Carried) -> bool:
    """Whether a join's side is one of events, in a stream or out of the log's past."""
    return bool(plan.isStreaming()) or carried.position is not None


def _at_most_one(join: LogicalPlan, static: LogicalPlan) -> bool:
    """Whether the plan shows that no two rows of the static side can fit one event."""
    if not join.condition().isDefined():
        return False
    equal = set[int]()
    for part in _conjuncts(join.condition().get()):
        if name_of(part) in ("EqualTo", "EqualNullSafe"):
            equal |= references(part)
    unique = _unique(static)
    return unique is not None and unique <= equal


def _unique(plan: LogicalPlan) -> set[int] | None:
    """Columns of which no two rows have the same values, if the plan makes them so."""
    match name_of(plan):
        case "Deduplicate":
            return {identity(key) for key in items(plan.keys())}
        case "Distinct":
            return {identity(attribute) for attribute in items(plan.output())}
        case "Aggregate":
            groups = items(plan.groupingExpressions())
            return set[int]().union(*(references(group) for group in groups))
        case "Project" | "Filter" | "SubqueryAlias" | "ResolvedHint" | "View" | "Sort":
            return _unique(plan.child())
        case _:
            return None


def _conjuncts(condition: LogicalPlan) -> list[LogicalPlan]:
    if name_of(condition) != "And":
        return [condition]
    return [*_conjuncts(condition.left()), *_conjuncts(condition.right())]


def _grouping(
    catalyst: Catalyst, plan: LogicalPlan, output: list[Attribute], aggregate: LogicalPlan
) -> dict[str, set[str]]:
    """What the result is grouped by, and for each the columns that show it."""
    groups = [
        group
        for group in items(aggregate.groupingExpressions())
        if references(group) and str(group.sql()) != "spark_grouping_id"
    ]
    shown = _shown(catalyst, plan, aggregate, [str(group.toString()) for group in groups])
    found: dict[str, set[str]] = {}
    for number, group in enumerate(groups):
        columns = {a.name(): shown.get(identity(a), set()) for a in output}
        alone = [name for name, numbers in columns.items() if numbers == {number}]
        name = alone[0] if alone else str(group.sql()).replace("`", "")
        found[name] = {each for each, numbers in columns.items() if number in numbers}
    return found


def _shown(
    catalyst: Catalyst, plan: LogicalPlan, aggregate: LogicalPlan, groups: list[str]
) -> dict[int, set[int]]:
    """For each attribute of a plan, the numbers of the groups that its expression is made of."""
    if plan.fastEquals(aggregate):
        patterns = catalyst.module("org.apache.spark.sql.catalyst.trees.TreePattern")
        shown = {}
        for expression in items(plan.aggregateExpressions()):
            text = str(expression.toString())
            if not expression.containsPattern(patterns.AGGREGATE_EXPRESSION()):
                shown[identity(expression)] = {
                    number
                    for number, group in enumerate(groups)
                    if re.search(rf"(?<!\w){re.escape(group)}(?!\d)", text)
                }
        return shown
    below: dict[int, set[int]] = {}
    for child in items(plan.children()):
        below |= _shown(catalyst, child, aggregate, groups)
    if name_of(plan) == "Project":
        return {
            identity(each): set[int]().union(*(below.get(i, set()) for i in references(each)))
            for each in items(plan.projectList())
        }
    return below


def _missing(groups: dict[str, set[str]], key: tuple[str, ...]) -> tuple[str, ...]:
    lowered = {name.lower() for name in key}
    return tuple(
        name
        for name, columns in groups.items()
        if not any(column.lower() in lowered for column in columns)
    )


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
