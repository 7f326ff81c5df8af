"""What goes up through a user's plan beside its columns: the hidden ones, and why some are not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from millstream.analyze.spark.catalyst import Attribute, LogicalPlan
from millstream.analyze.windows.count_window import Counted
from millstream.analyze.windows.window import Grouped


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
    closed: Attribute | None = None  # the windows that an event is too late for, by their end;
    # None once that is not asked any more, as of what a join has let in
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
    chooses: bool = False  # some groups' rows are left out, by what is counted or summed in them
    branches: int = 1  # how many inputs of unions it puts together, unions of unions included

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
