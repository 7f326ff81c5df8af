"""The state of a plan's rewriting: the rewritten plan and its hidden columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from millstream.analyze.spark.catalyst import Attribute, LogicalPlan
from millstream.analyze.windows.count_rewrite import CountWindowPlan
from millstream.analyze.windows.grouped_window import GroupedWindow


@dataclass(frozen=True, slots=True)
class RewrittenPlan:
    """A plan with the columns of the user's plan and the hidden ones."""

    plan: LogicalPlan
    sources: frozenset[str] = frozenset()  # the topics that its rows come from
    position: Attribute | None = None  # of the event; None if that is not known
    row: Attribute | None = None  # number among the event's rows; None: the event has one row
    levels: int = 0  # how often one row was made into several
    received: Attribute | None = None
    event_time: Attribute | None = None
    closed: Attribute | None = None  # the event is too late for windows that ended by then;
    # None once nothing above depends on it, as after a join
    revision: Attribute | None = None
    aggregate: LogicalPlan | None = None  # the user's Aggregate, if the result is grouped
    window: GroupedWindow | None = None  # the time window that the aggregate groups by
    counted: CountWindowPlan | None = None  # or the count window
    watermark: Attribute | None = None  # when the event came; only if late events are listed
    id: Attribute | None = None  # of the event; only if late events are listed
    late: Attribute | None = None  # the ids of the late events in a window's row
    why_no_position: str = ""
    weight: Attribute | None = None  # how many events this one stands for
    spread: Attribute | None = None  # how many rows one event was made into; None: one
    is_expanded: bool = False  # one event has a row in each of its windows or grouping sets
    why_no_weight: str = ""
    errors: Mapping[int, Attribute] = field(default_factory=dict)  # of an aggregate's columns
    filters_groups: bool = False  # as HAVING does, by a count or sum
    branches: int = 1  # number of inputs of all unions in it

    def hidden(self) -> list[Attribute]:
        """The hidden columns, always in this order: it is part of a view's generation."""
        columns = [
            self.position,
            self.row,
            self.received,
            self.event_time,
            self.closed,
            self.watermark,
            self.id,
            self.late,
            self.revision,
            self.weight,
            self.spread,
            *self.errors.values(),
        ]
        return [column for column in columns if column is not None]

    def without_position(self, why: str) -> RewrittenPlan:
        why = self.why_no_position or why
        return replace(self, position=None, row=None, why_no_position=why)

    def without_weight(self, why: str) -> RewrittenPlan:
        return replace(self, weight=None, spread=None, why_no_weight=self.why_no_weight or why)
