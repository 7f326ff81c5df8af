"""Where several inputs flow together, in unions and joins: which lineage is left behind that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import Column
from pyspark.sql import functions as F

from millstream.analyze.lineage.hidden_columns import Carried
from millstream.analyze.records.reader import MARK
from millstream.analyze.spark.catalyst import (
    Attribute,
    Catalyst,
    LogicalPlan,
    identity,
    items,
    name_of,
    references,
)
from millstream.values.hidden_columns import (
    CLOSED,
    EVENT_TIME,
    ID,
    POSITION,
    RECEIVED,
    WATERMARK,
    WEIGHT,
)


def unite(catalyst: Catalyst, plan: LogicalPlan, branches: Sequence[Carried]) -> Carried:
    """The Union of plans that were built anew, with what they have in common."""
    sources = frozenset[str]().union(*(branch.sources for branch in branches))
    if any(branch.revision is not None for branch in branches):
        alike = [
            _only(catalyst, branch.plan, child)
            for branch, child in zip(branches, items(plan.children()), strict=True)
        ]
        return Carried(
            plan.withNewChildren(catalyst.seq(alike)),
            sources,
            lost="it puts grouped results together",
        )
    lost = next((branch.lost for branch in branches if branch.position is None), "")
    is_weighed = all(branch.weight is not None for branch in branches)
    names_late = any(branch.id is not None for branch in branches)
    fresh, seen, number = [], set[str](), 1
    for child, branch in zip(items(plan.children()), branches, strict=True):
        # Rows of the same event from two branches are two results, and told apart by the label:
        # by a number that no branch of a union beneath has.
        label = f"#{number}" if branch.sources & seen else ""
        seen |= branch.sources
        number += branch.branches
        kept = [catalyst.column(attribute) for attribute in items(child.output())]
        hidden = _union_columns(catalyst, branch, label)
        if names_late:
            hidden += _union_names(catalyst, branch)
        if is_weighed:
            ways = sum(bool(branch.sources & other.sources) for other in branches)
            hidden += _union_weights(catalyst, branch, ways)
        fresh.append(catalyst.analysed(catalyst.frame(branch.plan).select(*kept, *hidden)))
    made = plan.copy(catalyst.seq(fresh), plan.byName(), plan.allowMissingCol())
    place = len(items(plan.output()))
    position, row, received, event_time, closed, *more = items(made.output())[place:]
    names = [*(("watermark", "id") if names_late else ()), "weight", "spread"]
    united = Carried(
        made,
        sources,
        position,
        row,
        max(branch.levels for branch in branches),
        received,
        event_time,
        closed,
        **dict(zip(names, more, strict=False)),
        unweighed=next((b.unweighed for b in branches if b.weight is None), ""),
        branches=number - 1,
    )
    return united.without_position(lost) if lost else united


def _only(catalyst: Catalyst, plan: LogicalPlan, like: LogicalPlan) -> LogicalPlan:
    """The columns that `like` gives, and no more, of a plan that gives at least these."""
    kept = [catalyst.column(attribute) for attribute in items(like.output())]
    return catalyst.analysed(catalyst.frame(plan).select(*kept))


def _union_columns(catalyst: Catalyst, branch: Carried, label: str) -> list[Column]:
    kind = "struct<source: string, partition: int, offset: bigint>"
    position = _column(catalyst, branch.position, kind)
    if label and branch.position is not None:
        source = F.concat(position.getField("source"), F.lit(label)).alias("source")
        rest = [position.getField(name).alias(name) for name in ("partition", "offset")]
        position = F.struct(source, *rest)
    row = F.coalesce(_column(catalyst, branch.row, "bigint"), F.lit(0).cast("bigint"))
    times = [
        _column(catalyst, each, "timestamp")
        for each in (branch.received, branch.event_time, branch.closed)
    ]
    named = zip(
        (position.cast(kind), row, *times),
        (POSITION, "_row", RECEIVED, EVENT_TIME, CLOSED),
        strict=True,
    )
    return [each.alias(name) for each, name in named]


def _union_names(catalyst: Catalyst, branch: Carried) -> list[Column]:
    """What names a late event; a branch that is no stream's has none."""
    return [
        _column(catalyst, branch.watermark, "timestamp").alias(WATERMARK),
        _column(catalyst, branch.id, "string").alias(ID),
    ]


def _column(catalyst: Catalyst, attribute: Attribute | None, kind: str) -> Column:
    return F.lit(None).cast(kind) if attribute is None else catalyst.column(attribute)


def _union_weights(catalyst: Catalyst, branch: Carried, ways: int) -> list[Column]:
    """`ways`: through how many branches rows of one event may come, all of them or none."""
    spread = F.lit(float(ways))
    if branch.spread is not None:
        spread *= catalyst.column(branch.spread)
    return [catalyst.column(branch.weight).alias(WEIGHT), spread.alias("_spread")]


def joins_streams(plan: LogicalPlan) -> bool:
    """Whether both sides of a Join are events, in a stream or out of the log's past."""
    return _flows(plan.left()) and _flows(plan.right())


def is_held(catalyst: Catalyst, plan: LogicalPlan, columns: set[int]) -> bool:
    """Whether joins of streams beneath end the time for which the rows with these columns come.

    A joined row comes with its later event. So how old its other event can be, whose columns these
    may be, is for the join's condition to say. Where it does not, no row above is ever complete.
    """
    if name_of(plan) == "Join" and joins_streams(plan):
        sides = (plan.left(), plan.right()), (plan.right(), plan.left())
        for side, other in sides:
            ours = columns & {identity(attribute) for attribute in items(side.output())}
            if ours and not (
                _is_bounded(catalyst, plan, side, other) and is_held(catalyst, side, ours)
            ):
                return False
        return True
    return all(
        is_held(catalyst, child, _beneath(plan, place, columns))
        for place, child in enumerate(items(plan.children()))
    )


def _is_bounded(
    catalyst: Catalyst, plan: LogicalPlan, side: LogicalPlan, other: LogicalPlan
) -> bool:
    """Whether Spark can tell when an event of the side finds no more matches."""
    helper = catalyst.module("org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper")
    if helper.isWatermarkInJoinKeys(plan):
        return True
    some_time = catalyst.some(10**12)  # more than an int: Spark wants a long
    sets = side.outputSet(), other.outputSet()
    return bool(helper.getStateValueWatermark(*sets, plan.condition(), some_time).isDefined())


def _beneath(plan: LogicalPlan, place: int, columns: set[int]) -> set[int]:
    """The columns of a plan's child that its own are made of."""
    match name_of(plan):
        case "Project":
            made = [(each, [each]) for each in items(plan.projectList())]
        case "Expand":
            panes = [items(pane) for pane in items(plan.projections())]
            made = list(zip(items(plan.output()), map(list, zip(*panes, strict=True)), strict=True))
        case "Union":
            theirs = items(items(plan.children())[place].output())
            made = [(own, [their]) for own, their in zip(items(plan.output()), theirs, strict=True)]
        case _:
            return columns
    wanted = [expressions for own, expressions in made if identity(own) in columns]
    return set[int]().union(*(references(each) for some in wanted for each in some))


def join(catalyst: Catalyst, plan: LogicalPlan, left: Carried, right: Carried) -> Carried:
    """The Join of two plans that were built anew: of streams, or of one with reference data."""
    made = plan.copy(left.plan, right.plan, plan.joinType(), plan.condition(), plan.hint())
    kind = name_of(plan.joinType()).rstrip("$")
    if joins_streams(plan):
        return _join_of_streams(catalyst, made, left, right, kind)
    streaming, static = (left, plan.right()) if _flows(plan.left()) else (right, plan.left())
    carried = replace(streaming, plan=made)
    if kind in ("LeftSemi", "LeftAnti") or _at_most_one(plan, static):
        return carried
    why = (
        "it joins reference data of which several rows may fit one event; "
        "dropDuplicates([…]) by the joined columns on that data says that only one does"
    )
    return carried.without_position(why)


def _join_of_streams(
    catalyst: Catalyst, made: LogicalPlan, left: Carried, right: Carried, kind: str
) -> Carried:
    why = "its rows come from two events each"
    if kind in ("LeftSemi", "LeftAnti"):
        return replace(left, plan=made).without_position(why)
    times = {}
    for name, one, other in (
        (RECEIVED, left.received, right.received),
        (EVENT_TIME, left.event_time, right.event_time),
    ):
        if one is not None and other is not None:
            times[name] = F.greatest(catalyst.column(one), catalyst.column(other))
    plan, added = catalyst.extend(made, **times)
    return Carried(
        plan,
        left.sources | right.sources,
        received=added.get(RECEIVED),
        event_time=added.get(EVENT_TIME),
        lost=why,
    )


def _flows(plan: LogicalPlan) -> bool:
    return bool(plan.isStreaming()) or _is_read(plan)


def _is_read(plan: LogicalPlan) -> bool:
    """Whether a plan that is not streaming has one of our readers beneath it."""
    if any(attribute.metadata().contains(MARK) for attribute in items(plan.output())):
        return True
    return any(_is_read(child) for child in items(plan.children()))


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
