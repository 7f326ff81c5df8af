"""The hidden columns of unions and joins, made from those of their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import Column
from pyspark.sql import functions as F

from millstream.analyze.lineage.hidden_columns import RewrittenPlan
from millstream.analyze.records.reader import is_hidden
from millstream.analyze.spark.catalyst import (
    Attribute,
    Catalyst,
    LogicalPlan,
    identity,
    items,
    name_of,
    nodes,
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

_POSITION_TYPE = "struct<source: string, partition: int, offset: bigint>"


def union(
    catalyst: Catalyst, plan: LogicalPlan, branches: Sequence[RewrittenPlan]
) -> RewrittenPlan:
    """The Union of rewritten plans, with the hidden columns that all of them have."""
    sources = frozenset[str]().union(*(branch.sources for branch in branches))
    is_grouped = any(branch.revision is not None for branch in branches)
    has_weights = all(branch.weight is not None for branch in branches)
    lists_late = any(branch.id is not None for branch in branches)
    fresh, seen, number, hidden = [], set[str](), 1, dict[str, Column]()
    for child, branch in zip(items(plan.children()), branches, strict=True):
        # Rows of the same event from two branches are two results. The label distinguishes them:
        # a number that no branch of a union inside this branch has.
        label = f"#{number}" if branch.sources & seen else ""
        seen |= branch.sources
        number += branch.branches
        paths = sum(bool(branch.sources & other.sources) for other in branches)
        if not is_grouped:
            weights = _weight_columns(catalyst, branch, paths) if has_weights else {}
            hidden = _hidden_columns(catalyst, branch, label, lists_late) | weights
        own = [catalyst.column(attribute) for attribute in items(child.output())]
        rows = catalyst.frame(branch.plan).select(*own, *hidden.values())
        fresh.append(catalyst.analysed(rows))
    if is_grouped:
        made = plan.withNewChildren(catalyst.seq(fresh))
        return RewrittenPlan(made, sources, why_no_position="it puts grouped results together")
    made = plan.copy(catalyst.seq(fresh), plan.byName(), plan.allowMissingCol())
    added = items(made.output())[len(items(plan.output())) :]
    united = RewrittenPlan(
        made,
        sources,
        levels=max(branch.levels for branch in branches),
        **dict(zip(hidden, added, strict=True)),
        why_no_weight=next((b.why_no_weight for b in branches if b.weight is None), ""),
        branches=number - 1,
    )
    why_not = next((branch.why_no_position for branch in branches if branch.position is None), "")
    return united.without_position(why_not) if why_not else united


def _hidden_columns(
    catalyst: Catalyst, branch: RewrittenPlan, label: str, lists_late: bool
) -> dict[str, Column]:
    """The hidden columns of a branch, by their names in RewrittenPlan; null if it lacks them."""

    def column(attribute: Attribute | None, kind: str) -> Column:
        return F.lit(None).cast(kind) if attribute is None else catalyst.column(attribute)

    position = column(branch.position, _POSITION_TYPE)
    if label and branch.position is not None:
        source = F.concat(position.getField("source"), F.lit(label)).alias("source")
        rest = [position.getField(name).alias(name) for name in ("partition", "offset")]
        position = F.struct(source, *rest)
    row = F.coalesce(column(branch.row, "bigint"), F.lit(0).cast("bigint"))
    found = {
        "position": position.cast(_POSITION_TYPE).alias(POSITION),
        "row": row.alias("_row"),
        "received": column(branch.received, "timestamp").alias(RECEIVED),
        "event_time": column(branch.event_time, "timestamp").alias(EVENT_TIME),
        "closed": column(branch.closed, "timestamp").alias(CLOSED),
    }
    if lists_late:
        found["watermark"] = column(branch.watermark, "timestamp").alias(WATERMARK)
        found["id"] = column(branch.id, "string").alias(ID)
    return found


def _weight_columns(catalyst: Catalyst, branch: RewrittenPlan, paths: int) -> dict[str, Column]:
    """`paths`: through how many branches rows of one event may come, together or not at all."""
    spread = F.lit(float(paths))
    if branch.spread is not None:
        spread *= catalyst.column(branch.spread)
    return {
        "weight": catalyst.column(branch.weight).alias(WEIGHT),
        "spread": spread.alias("_spread"),
    }


def joins_streams(plan: LogicalPlan) -> bool:
    """Whether both sides of a Join are events, streamed or read in a batch."""
    return _has_events(plan.left()) and _has_events(plan.right())


def is_time_bounded(catalyst: Catalyst, plan: LogicalPlan, columns: set[int]) -> bool:
    """Whether all stream joins in the plan bound the age of the events that these columns are of.

    A joined row comes with the later one of its two events. Only the join's condition bounds how
    old the other event is. Without a bound, no window over the join is ever complete.
    """
    if name_of(plan) == "Join" and joins_streams(plan):
        sides = (plan.left(), plan.right()), (plan.right(), plan.left())
        for side, other in sides:
            ours = columns & {identity(attribute) for attribute in items(side.output())}
            if ours and not (
                _is_bounded(catalyst, plan, side, other) and is_time_bounded(catalyst, side, ours)
            ):
                return False
        return True
    return all(
        is_time_bounded(catalyst, child, _columns_below(plan, place, columns))
        for place, child in enumerate(items(plan.children()))
    )


def _is_bounded(
    catalyst: Catalyst, plan: LogicalPlan, side: LogicalPlan, other: LogicalPlan
) -> bool:
    """Whether Spark can compute when an event of the side has no more matches."""
    helper = catalyst.module("org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper")
    if helper.isWatermarkInJoinKeys(plan):
        return True
    some_time = catalyst.some(10**12)  # beyond an int, because Spark needs a Long
    sets = side.outputSet(), other.outputSet()
    return bool(helper.getStateValueWatermark(*sets, plan.condition(), some_time).isDefined())


def _columns_below(plan: LogicalPlan, place: int, columns: set[int]) -> set[int]:
    """The columns of a plan's child that these columns of the plan are computed from."""
    match name_of(plan):
        case "Project":
            made = [(each, [each]) for each in items(plan.projectList())]
        case "Expand":
            projections = map(items, items(plan.projections()))
            by_column = map(list, zip(*projections, strict=True))
            made = list(zip(items(plan.output()), by_column, strict=True))
        case "Union":
            theirs = items(items(plan.children())[place].output())
            made = [(own, [their]) for own, their in zip(items(plan.output()), theirs, strict=True)]
        case _:
            return columns
    wanted = [expressions for own, expressions in made if identity(own) in columns]
    return set[int]().union(*(references(each) for some in wanted for each in some))


def join(
    catalyst: Catalyst, plan: LogicalPlan, left: RewrittenPlan, right: RewrittenPlan
) -> RewrittenPlan:
    """The Join of two rewritten plans: of two streams, or of a stream with reference data."""
    made = plan.copy(left.plan, right.plan, plan.joinType(), plan.condition(), plan.hint())
    kind = name_of(plan.joinType()).rstrip("$")
    if joins_streams(plan):
        return _join_of_streams(catalyst, made, left, right, kind)
    streaming, static = (left, plan.right()) if _has_events(plan.left()) else (right, plan.left())
    rewritten = replace(streaming, plan=made)
    if kind in ("LeftSemi", "LeftAnti") or _has_one_match(plan, static):
        return rewritten
    why = (
        "it joins reference data of which several rows may fit one event; "
        "dropDuplicates([…]) by the joined columns on that data says that only one does"
    )
    return rewritten.without_position(why)


def _join_of_streams(
    catalyst: Catalyst, made: LogicalPlan, left: RewrittenPlan, right: RewrittenPlan, kind: str
) -> RewrittenPlan:
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
    return RewrittenPlan(
        plan,
        left.sources | right.sources,
        received=added.get(RECEIVED),
        event_time=added.get(EVENT_TIME),
        why_no_position=why,
    )


def _has_events(plan: LogicalPlan) -> bool:
    return bool(plan.isStreaming()) or any(
        is_hidden(attribute) for node in nodes(plan) for attribute in items(node.output())
    )


def _has_one_match(join: LogicalPlan, static: LogicalPlan) -> bool:
    """Whether the plan shows that at most one row of the static side matches an event."""
    if not join.condition().isDefined():
        return False
    equal = set[int]()
    for part in _conjuncts(join.condition().get()):
        if name_of(part) in ("EqualTo", "EqualNullSafe"):
            equal |= references(part)
    unique = _unique_columns(static)
    return unique is not None and unique <= equal


def _unique_columns(plan: LogicalPlan) -> set[int] | None:
    """Columns that together are unique, because the plan makes them so; None if not known."""
    match name_of(plan):
        case "Deduplicate":
            return {identity(key) for key in items(plan.keys())}
        case "Distinct":
            return {identity(attribute) for attribute in items(plan.output())}
        case "Aggregate":
            groups = items(plan.groupingExpressions())
            return set[int]().union(*(references(group) for group in groups))
        case "Project" | "Filter" | "SubqueryAlias" | "ResolvedHint" | "View" | "Sort":
            return _unique_columns(plan.child())
        case _:
            return None


def _conjuncts(condition: LogicalPlan) -> list[LogicalPlan]:
    if name_of(condition) != "And":
        return [condition]
    return [*_conjuncts(condition.left()), *_conjuncts(condition.right())]
