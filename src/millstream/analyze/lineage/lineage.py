"""Traces a user's query: adds hidden columns that identify and order its result rows.

A grouped result gets `_revision` (the number of its input rows, which only grows), and the
`_received_at` and `_event_time` of its newest event. Any other result keeps its event's
`_position`, with the number of the row among the event's rows. The user writes nothing for this:
the analysed plan is rewritten so that each node passes the columns up. The rewriting also adds
filters for late events: below windows by the window's end, below joins and deduplication by the
event's own time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millstream.analyze.lineage.additive import ColumnKind, column_kinds
from millstream.analyze.lineage.estimates import NotEstimable, errors_shown
from millstream.analyze.lineage.grouping import grouped_by, missing_in_key
from millstream.analyze.lineage.hidden_columns import RewrittenPlan
from millstream.analyze.lineage.plan_rewriter import PlanRewriter
from millstream.analyze.plan import Lineage
from millstream.analyze.spark.catalyst import Attribute, Catalyst, LogicalPlan, items
from millstream.analyze.spark.realtime import UnsupportedQuery
from millstream.analyze.windows.count_rewrite import CountWindowPlan
from millstream.analyze.windows.grouped_window import GroupedWindow
from millstream.analyze.windows.window_spec import WindowSpec
from millstream.pipeline.windows import parse_marker
from millstream.values.hidden_columns import ERROR, EVENT_TIME, LATE, POSITION, RECEIVED, REVISION


@dataclass(frozen=True, slots=True)
class TracedQuery:
    """A user's result with its lineage."""

    frame: DataFrame  # the user's columns, then `_revision` or `_position`, and the times
    columns: tuple[str, ...]  # the user's
    lineage: Lineage
    why_no_position: str  # if there is no revision either
    grouping: tuple[str, ...] | None  # what the result is grouped by; None: not grouped
    missing_in_key: tuple[str, ...]  # groups that no key column shows
    window: GroupedWindow | None  # the time window that the result is grouped by
    windows: tuple[
        tuple[GroupedWindow, frozenset[str]], ...
    ]  # all by event time, with their topics
    counted: CountWindowPlan | None  # the count window that the result is grouped by
    sources: frozenset[str]  # the topics that its rows come from
    late_by_event_time: frozenset[str]  # topics whose events are late by their event time alone
    column_kinds: Mapping[str, ColumnKind]  # of a grouped result
    estimated: tuple[str, ...]  # the columns that are estimates where events were shed
    filters_groups: bool  # as HAVING does, by a count or sum

    @property
    def window_kind(self) -> type[WindowSpec] | None:
        """The kind of the windows that the result is grouped by."""
        if self.counted is not None:
            return self.counted.kind
        return None if self.window is None else self.window.kind

    @property
    def has_watermark(self) -> bool:
        """Whether a watermark tells when its windows are over."""
        return self.window is None or self.window.time is not None


def trace(
    frame: DataFrame,
    key: tuple[str, ...] | None,
    *,
    batch: bool | None = None,
    lists_late: bool = False,
    weighs: bool = False,
) -> TracedQuery:
    """The user's result with hidden columns after its own; UnsupportedQuery if no mode can run it.

    `batch`: for a batch over all events. A frame that is not streaming is always one.
    `lists_late`: adds the ids of the late events in a window's row.
    `weighs`: counts, sums and averages become estimates, and `_error` has their errors.
    """
    catalyst = Catalyst.of(frame)
    plan = _inlined(catalyst, catalyst.analysed(frame))
    batch = not frame.isStreaming if batch is None else batch
    rewriter = PlanRewriter(catalyst, batch, lists_late, weighs)
    rewritten = rewriter.rewrite(plan)
    if weighs and rewritten.aggregate is None:
        raise NotEstimable("it does not group, and only counts and sums of groups can be estimated")
    if rewritten.counted is not None and key is None:
        # These rows never change: without a key, their event's position identifies them.
        rewritten = replace(rewritten, revision=None)
    if parse_marker(str(rewritten.plan.toString())):
        raise UnsupportedQuery("by_count(…), or count_window(…), is not a column: group by it")
    output = items(plan.output())
    columns = [catalyst.column(attribute) for attribute in output]
    names = tuple(str(attribute.name()) for attribute in output)
    aggregate = rewritten.aggregate
    errors = errors_shown(plan, aggregate, rewritten.errors) if rewritten.errors else {}
    hidden = [*_hidden_columns(catalyst, rewritten), *_error_column(catalyst, errors)]
    result = catalyst.frame(rewritten.plan).select(*columns, *hidden)
    groups = None if aggregate is None else grouped_by(catalyst, plan, output, aggregate)
    lineage: Lineage = "none"
    if rewritten.revision is not None:
        lineage = "revision"
    elif rewritten.position is not None:
        lineage = "position"
    return TracedQuery(
        frame=result,
        columns=names,
        lineage=lineage,
        why_no_position="" if lineage != "none" else rewritten.why_no_position,
        grouping=tuple(groups) if groups is not None else None,
        missing_in_key=missing_in_key(groups or {}, key or ()),
        window=rewritten.window,
        windows=tuple(rewriter.windows),
        counted=rewritten.counted,
        sources=rewritten.sources,
        late_by_event_time=frozenset(rewriter.late_by_event_time),
        column_kinds={} if aggregate is None else column_kinds(catalyst, plan, output, aggregate),
        estimated=tuple(errors),
        filters_groups=rewritten.filters_groups,
    )


def _inlined(catalyst: Catalyst, plan: LogicalPlan) -> LogicalPlan:
    """The plan with each CTE (WITH) in the places where it is used."""
    if not catalyst.contains(plan, "CTE"):
        return plan
    inline = catalyst.java("org.apache.spark.sql.catalyst.optimizer.InlineCTE")
    return inline(True, False, False).apply(plan)


def _hidden_columns(catalyst: Catalyst, rewritten: RewrittenPlan) -> list[Column]:
    def column(attribute: Attribute | None, kind: str) -> Column:
        return F.lit(None).cast(kind) if attribute is None else catalyst.column(attribute)

    hidden = []
    if rewritten.revision is not None:
        hidden.append(catalyst.column(rewritten.revision).alias(REVISION))
    elif rewritten.position is not None:
        position = catalyst.column(rewritten.position)
        row = F.lit(0) if rewritten.row is None else catalyst.column(rewritten.row)
        parts = [position.getField(name).alias(name) for name in ("source", "partition", "offset")]
        hidden.append(F.struct(*parts, row.cast("bigint").alias("row")).alias(POSITION))
    hidden.append(column(rewritten.received, "timestamp").alias(RECEIVED))
    hidden.append(column(rewritten.event_time, "timestamp").alias(EVENT_TIME))
    if rewritten.late is not None:
        hidden.append(catalyst.column(rewritten.late).alias(LATE))
    return hidden


def _error_column(catalyst: Catalyst, errors: Mapping[str, Attribute]) -> list[Column]:
    found = [catalyst.column(attribute).alias(name) for name, attribute in errors.items()]
    return [F.struct(*found).alias(ERROR)] if found else []
