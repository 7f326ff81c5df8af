"""Hidden columns through a user's plan: how new each result row is, and which event it comes from.

A grouped result gets `_revision` (how many rows are in: it only grows), `_received_at` and
`_event_time` (of the newest event that is in). Any other result keeps its event's `_position`, to
which the number of the row among the event's rows is added where a plan makes several of one. The
user writes nothing for this: their analysed plan is walked from the top down to our reader, and
built anew with the columns passed up. On the way, events that are late for the window that they
would be counted in are kept out of it, and those that are late by their own time out
of joins, and of what takes each row once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millstream.analyze.lineage.additive import Nature, natures
from millstream.analyze.lineage.estimates import Unweighable, errors_shown
from millstream.analyze.lineage.grouping import grouped_by, missing_in_key
from millstream.analyze.lineage.hidden_columns import Carried
from millstream.analyze.lineage.plan_rewriter import Carrier
from millstream.analyze.spark.catalyst import Attribute, Catalyst, LogicalPlan, items
from millstream.analyze.spark.realtime import Refused
from millstream.analyze.windows.count_window import Counted
from millstream.analyze.windows.window import Grouped
from millstream.pipeline.windows import marked
from millstream.values.hidden_columns import ERROR, EVENT_TIME, LATE, POSITION, RECEIVED, REVISION

Lineage = Literal["revision", "position", "none"]


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
    windows: tuple[tuple[Grouped, frozenset[str]], ...]  # by event time, anywhere; of which topics
    counted: Counted | None  # likewise, by a window of so many events
    sources: frozenset[str]  # the topics that its rows come from
    by_own_time: frozenset[str]  # of these, the ones whose events are late by that alone
    natures: Mapping[str, Nature]  # of a grouped result's columns: which of them add up
    weighed: tuple[str, ...]  # the columns that are estimates where events were shed
    chooses: bool  # whether groups' rows are left out, by what is counted or summed in them

    @property
    def is_timed(self) -> bool:
        """Whether a watermark tells when its windows are over: none does of any other time."""
        return self.window is None or self.window.time is not None


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
    carrier = Carrier(catalyst, whole, names_late, weighs)
    carried = carrier.carry(plan)
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
    groups = None if aggregate is None else grouped_by(catalyst, plan, output, aggregate)
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
        missing_in_key(groups or {}, key or ()),
        carried.window,
        tuple(carrier.windows),
        carried.counted,
        carried.sources,
        frozenset(carrier.by_own_time),
        {} if aggregate is None else natures(catalyst, plan, output, aggregate),
        tuple(errors),
        carried.chooses,
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
