"""What will run, as `millstream plan` prints it: plain values, known without Kafka."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Literal

from millstream.log.topic_names import edition_of
from millstream.pipeline.trigger import Accumulation
from millstream.syntax.duration import format_duration
from millstream.values.view_description import ViewColumn, ViewDescription

WindowKind = Literal["tumbling", "sliding", "session", "count"]
RunMode = Literal["real_time", "micro_batch"]
Lineage = Literal["revision", "position", "batch", "none"]

_GUARANTEES: dict[Lineage, str] = {
    "revision": "each event counted once; after a crash no number goes backwards",
    "position": "each event's rows once, in order per source partition",
    "batch": "each row once: a batch that is repeated after a crash is recognised by its number",
    "none": "no event lost; after a crash some rows come again",
}


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """The windows that a view groups by. An event is in the one(s) that its time falls into."""

    kind: WindowKind
    size_ms: int  # of a session: the gap that ends it; 0 if it differs from event to event
    slide_ms: int  # from one window's start to the next one's; the size if they do not overlap
    # (Of windows by count, size and slide are numbers of events.)
    start_ms: int  # where windows begin, counted from 1970, modulo slide
    stream: str  # whose time it is: the first one's, if several are put together
    lateness_ms: int
    time: Literal["event", "stream"] = "event"
    lateness_by_stream: dict[str, int] = field(default_factory=dict)  # of all that come in, in ms

    @property
    def words(self) -> str:
        if self.kind == "count":
            every = "" if self.slide_ms == self.size_ms else f" every {self.slide_ms:,}"
            return f"count, {self.size_ms:,} events{every}, in the order of {self.stream}"
        length = format_duration(timedelta(milliseconds=self.size_ms)) if self.size_ms else "varies"
        match self.kind:
            case "sliding":
                every = format_duration(timedelta(milliseconds=self.slide_ms))
                how = f"{length} every {every}"
            case "session":
                how = f"ends after a gap of {length}" if self.size_ms else "ends after a gap"
            case _:
                how = length
        return f"{self.kind}, {how}, by {self.time} time of {', '.join(self.lateness_by_stream)}"


@dataclass(frozen=True, slots=True, repr=False)
class OutputPlan:
    """How a view's rows are shown, and what of them is entered into its ledger."""

    trigger: str
    accumulation: Accumulation
    additive: tuple[str, ...]  # the columns that count or sum
    ledger: tuple[str, ...]
    is_direct: bool  # the query's own rows are shown, as they come

    def __repr__(self) -> str:
        """Part of the text that a generation is made of: a change would rebuild stored views."""
        values = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self))
        return f"PanePlan({values})"

    @property
    def words(self) -> str:
        how = {
            "accumulate": "a row says all that is in it",
            "discard": "a row says what is new",
            "retract": "a row is taken back before the next one",
        }
        return f"{self.trigger}; {how[self.accumulation]}"


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """How one view will be kept up to date."""

    name: str
    inputs: tuple[str, ...]
    reads: tuple[str, ...]  # topics
    topic: str
    key: tuple[str, ...] | None
    columns: tuple[ViewColumn, ...]
    window: str | None  # the column that is a time window, if one is
    mode: RunMode
    output_mode: Literal["update", "append"]
    reason: str  # why that mode
    lineage: Lineage
    doubt: str  # why no better lineage, if so
    slots: int
    keep_ms: int | None
    generation: str
    description: str
    window_spec: WindowSpec | None = None  # None: no window, or not by a time of the stream
    late_by: tuple[WindowSpec, ...] = ()  # the windows by which events are late, in whatever place
    by_own_time: dict[str, int] = field(default_factory=dict)  # the streams whose events, if they
    # came so many ms after their own time or later, are in no row, whatever its window
    is_timed: bool = True  # whether a watermark tells when its windows are over
    trigger: str = ""  # when a row is given out
    eviction: str = ""  # when what a row is made of is forgotten
    output: OutputPlan | None = None  # None: the query's rows are all there is
    weighed: tuple[str, ...] = ()  # columns that are estimates where events were shed
    sheds_after_ms: int | None = None  # how far behind it is when it begins to shed; None: never

    @property
    def written(self) -> str:
        """The topic that the query writes to: the view's, unless its rows are shown otherwise."""
        if self.output is None or self.output.is_direct:
            return self.topic
        return self.topic.replace(".view.", ".changes.", 1)

    @property
    def shedding(self) -> str:
        """Whether the view may leave events out, and what its rows then carry; empty if not."""
        if not self.weighed:
            return ""
        bars = f"{', '.join(self.weighed)} are weighed, and _error has their 95 % error"
        if self.sheds_after_ms is None:
            return f"never; {bars} where a stream has shed"
        after = format_duration(timedelta(milliseconds=self.sheds_after_ms))
        return f"takes a sample while it is more than {after} behind; {bars}"

    @property
    def guarantee(self) -> str:
        promise = _GUARANTEES[self.lineage]
        return f"{promise} ({self.doubt})" if self.doubt else promise

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
            weighed=list(self.weighed),
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """Every view, inputs before those that read them."""

    app: str
    views: tuple[ViewPlan, ...]

    @property
    def slots(self) -> int:
        """Tasks that must be able to run at once."""
        return sum(view.slots for view in self.views)
