"""The model that every tier works from: what the user's streams and views are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from millstream.connectors import SourceDescription
from millstream.pipeline.trigger import EVERY_CHANGE, Accumulation, Trigger
from millstream.schema import Schema
from millstream.schema.validate import Validator
from millstream.syntax.source_location import SourceLocation

Delivery = Literal["exactly_once", "at_least_once", "at_most_once"]
OnInvalid = Literal["reject", "keep"]
Mode = Literal["auto", "real_time", "micro_batch"]
Reading = Literal["changes", "reference"]
OnDataLoss = Literal["continue", "stop"]
# Of a view's `shed`: what its streams have shed is weighed, no more.
WEIGHED_ONLY: Literal["stream"] = "stream"
SHED_AT_RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Stream:
    """Events that come in."""

    name: str
    schema: Schema
    key: str | None
    event_time: str | None
    lateness: timedelta
    delivery: Delivery
    retention: timedelta
    source: SourceDescription | None
    location: SourceLocation
    description: str = ""
    dedup: timedelta = timedelta(hours=1)  # how long a sender's id is remembered
    on_invalid: OnInvalid = "reject"
    shed: str | None = None  # "random", or an SQL condition for what matters least
    shed_at: float = 0.8  # how full the journal is when shedding begins
    ahead: timedelta = timedelta(minutes=1)  # how far in the future an event may be dated

    def validator(self) -> Validator:
        """Checks the bytes of this stream's events."""
        return Validator(self.schema, key=self.key, event_time=self.event_time)

    @property
    def remembers_ids(self) -> bool:
        """Whether a retry with the same id is recognised: what exactly once means to a sender."""
        return self.delivery == "exactly_once" and bool(self.dedup)


@dataclass(frozen=True, slots=True)
class View:
    """What a continuous query keeps: a table if it has a key, else a stream of result rows."""

    name: str
    inputs: tuple[str, ...]
    key: tuple[str, ...] | None
    keep: timedelta | None
    mode: Mode
    description: str
    function: Callable[..., Any] | None  # exactly one of function and sql is set
    sql: str | None
    location: SourceLocation
    # For each input that is a table: whether its changes are read as events, or it is looked up.
    reads: Mapping[str, Reading] = field(default_factory=dict, hash=False)
    on_data_loss: OnDataLoss | None = None  # None: as the settings say
    trigger: Trigger = EVERY_CHANGE  # when a row is shown
    accumulation: Accumulation = "accumulate"  # what a shown row says: all, or what is new
    ledger: tuple[str, ...] = ()  # the columns whose amounts are entered, once a row is final
    # How far behind it may be before it takes a sample of its input; None: it never does, and
    # counts each event as one, even if that stands for others that its stream has shed.
    shed: timedelta | Literal["stream"] | None = None

    @property
    def has_output_options(self) -> bool:
        """Whether rows are shown otherwise than as the query gives them."""
        return self.trigger != EVERY_CHANGE or self.accumulation != "accumulate"

    @property
    def sheds_after(self) -> timedelta | None:
        """How far behind it is when it begins to shed, if it ever does."""
        return self.shed if isinstance(self.shed, timedelta) else None
