"""The plan of a pipeline, as `millstream plan` prints it: plain values, made without Kafka."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from millstream.analyze.windows.window_spec import WindowSpec
from millstream.log.topic_names import edition_of
from millstream.pipeline.trigger import Accumulation
from millstream.syntax.duration import format_duration
from millstream.values.view_description import ViewColumn, ViewDescription

RunMode = Literal["real_time", "micro_batch"]
# By what a reader recognises rows that a crash repeated.
Lineage = Literal["revision", "position", "batch", "none"]

_GUARANTEES: dict[Lineage, str] = {
    "revision": "each event counted once; after a crash no number goes backwards",
    "position": "each event's rows once, in order per source partition",
    "batch": "each row once: a batch that is repeated after a crash is recognised by its number",
    "none": "no event lost; after a crash some rows come again",
}
_ACCUMULATIONS: dict[Accumulation, str] = {
    "accumulate": "a row has all events so far",
    "discard": "a row has what is new since the last one",
    "retract": "a row is retracted before the next one",
}


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """When and how a view's rows are shown, and which columns go into its ledger."""

    trigger: str
    accumulation: Accumulation
    additive: tuple[str, ...]  # the columns that are counts or sums
    ledger: tuple[str, ...]
    is_direct: bool  # the rows that the query writes are shown as they are

    @property
    def text(self) -> str:
        return f"{self.trigger}; {_ACCUMULATIONS[self.accumulation]}"

    @property
    def fingerprint(self) -> str:
        """The part of a view's generation. Checkpoints depend on this text: it must not change."""
        return (
            f"PanePlan(trigger={self.trigger!r}, accumulation={self.accumulation!r}, "
            f"additive={self.additive!r}, ledger={self.ledger!r}, is_direct={self.is_direct!r})"
        )


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """How one view is kept up to date."""

    name: str
    inputs: tuple[str, ...]
    reads: tuple[str, ...]  # topics
    topic: str  # with the rows as they are shown; its last part is the edition, from the second on
    key: tuple[str, ...] | None
    columns: tuple[ViewColumn, ...]
    window: str | None  # the column that is a time window
    mode: RunMode
    output_mode: Literal["update", "append"]
    reason: str  # for the mode
    lineage: Lineage
    lineage_reason: str  # why there is no better lineage
    slots: int
    keep_ms: int | None
    generation: str  # fingerprint of the query; a checkpoint belongs to one generation
    description: str
    window_spec: WindowSpec | None = None  # None: no window, or not by a time of the stream
    late_by_window: tuple[WindowSpec, ...] = ()  # all windows, at any depth, that leave out events
    # The streams whose events are left out whatever their window, if they are later than this (ms).
    late_by_event_time: dict[str, int] = field(default_factory=dict)
    has_watermark: bool = True  # a watermark tells when its windows are over
    trigger: str = ""  # when rows are shown
    eviction: str = ""  # when state is deleted
    output: OutputPlan | None = None  # None: the query's rows are shown, and there is no ledger
    estimated: tuple[str, ...] = ()  # columns that are estimates where events were shed
    sheds_after_ms: int | None = None  # the lag at which it begins to shed; None: never

    @property
    def query_topic(self) -> str:
        """The topic that the Spark query writes to: the view's own, unless a trigger is between."""
        if self.output is None or self.output.is_direct:
            return self.topic
        return self.topic.replace(".view.", ".changes.", 1)

    @property
    def shedding(self) -> str:
        """Whether the view may leave events out, and what its rows show then; empty if not."""
        if not self.estimated:
            return ""
        bars = f"{', '.join(self.estimated)} are estimates, and _error has their 95 % error"
        if self.sheds_after_ms is None:
            return f"never; {bars} where a stream has shed"
        after = format_duration(timedelta(milliseconds=self.sheds_after_ms))
        return f"takes a sample while it is more than {after} behind; {bars}"

    @property
    def guarantee(self) -> str:
        promise = _GUARANTEES[self.lineage]
        return f"{promise} ({self.lineage_reason})" if self.lineage_reason else promise

    def describe(self) -> ViewDescription:
        return ViewDescription(
            name=self.name,
            inputs=list(self.inputs),
            key=None if self.key is None else list(self.key),
            columns=list(self.columns),
            mode=self.mode,
            reason=self.reason,
            guarantee=self.guarantee,
            lineage=self.lineage,
            generation=self.generation,
            description=self.description,
            keep_ms=self.keep_ms,
            window=self.window,
            trigger=self.output.trigger if self.output else "every change",
            accumulation=self.output.accumulation if self.output else "accumulate",
            ledger=list(self.output.ledger) if self.output else [],
            topic=self.topic if edition_of(self.topic) else "",
            weighed=list(self.estimated),
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """Every view, in an order in which inputs come before their readers."""

    app: str
    views: tuple[ViewPlan, ...]

    @property
    def slots(self) -> int:
        """Number of tasks that must be able to run at once."""
        return sum(view.slots for view in self.views)
