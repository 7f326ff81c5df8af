"""The model of a pipeline that all tiers use: its streams, views and named queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from millstream.connectors import SourceDescription
from millstream.expression.policy import PolicyCondition
from millstream.pipeline.trigger import EVERY_CHANGE, Accumulation, Trigger
from millstream.schema import Schema
from millstream.schema.validate import Validator
from millstream.syntax.source_location import SourceLocation

Delivery = Literal["exactly_once", "at_least_once", "at_most_once"]
OnInvalid = Literal["reject", "keep"]
Mode = Literal["auto", "real_time", "micro_batch"]
Reading = Literal["changes", "reference"]
OnDataLoss = Literal["continue", "stop"]
ParameterType = Literal["string", "integer", "number", "boolean"]
ParameterValue = str | int | float | bool | None
# A value of a view's `shed`: it weighs what its streams have shed, and sheds nothing itself.
WEIGHED_ONLY: Literal["stream"] = "stream"
SHED_AT_RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Policy:
    """Which callers see which rows and columns. It is no part of a query: it can change freely."""

    rows: PolicyCondition | None = None  # over a row and the caller's claims; None: every row
    # For each column that not all callers see: the condition on the claims under which they do.
    hide: Mapping[str, PolicyCondition] = field(default_factory=dict, hash=False)

    def __bool__(self) -> bool:
        return self.rows is not None or bool(self.hide)

    @property
    def claims(self) -> frozenset[str]:
        """The claims that its conditions use."""
        rows = self.rows.claims if self.rows is not None else frozenset()
        return rows.union(*(each.claims for each in self.hide.values()))


NO_POLICY = Policy()  # every caller who may read it sees everything


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream of events."""

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
    dedup: timedelta = timedelta(hours=1)  # how long a retry with the same id is recognised
    on_invalid: OnInvalid = "reject"
    shed: str | None = None  # "random", or an SQL condition for the events to drop
    shed_at: float = 0.8  # how full the journal is when shedding begins
    ahead: timedelta = timedelta(minutes=1)  # how far in the future an event may be dated
    policy: Policy = NO_POLICY

    def validator(self) -> Validator:
        """The validator of this stream's events."""
        return Validator(self.schema, key=self.key, event_time=self.event_time)

    @property
    def remembers_ids(self) -> bool:
        """Whether a sender's retry with the same id is recognised."""
        return self.delivery == "exactly_once" and bool(self.dedup)


@dataclass(frozen=True, slots=True)
class View:
    """The result of a continuous query: a table if it has a key, else a stream of rows."""

    name: str
    inputs: tuple[str, ...]
    key: tuple[str, ...] | None
    keep: timedelta | None
    mode: Mode
    description: str
    function: Callable[..., Any] | None  # exactly one of function and sql is set
    sql: str | None
    location: SourceLocation
    # For each input that is a table: whether its changes are read as events, or rows are looked up.
    reads: Mapping[str, Reading] = field(default_factory=dict, hash=False)
    on_data_loss: OnDataLoss | None = None  # None: as the settings say
    trigger: Trigger = EVERY_CHANGE  # when a row is output
    accumulation: Accumulation = "accumulate"  # whether a row has all, or only what is new
    ledger: tuple[str, ...] = ()  # columns with amounts, entered once a row is final
    # How far it may fall behind before it processes a sample of its input. None: it never does, and
    # counts each event as one, even if it stands for others that its stream has shed.
    shed: timedelta | Literal["stream"] | None = None
    policy: Policy = NO_POLICY
    ledger_policy: Policy = NO_POLICY  # of the ledger's entries; `key.<column>` is a key column

    @property
    def has_output_options(self) -> bool:
        """Whether a trigger or accumulation decides which of the query's rows are output."""
        return self.trigger != EVERY_CHANGE or self.accumulation != "accumulate"

    @property
    def sheds_after(self) -> timedelta | None:
        """How far behind it is when it begins to shed; None if it never sheds."""
        return self.shed if isinstance(self.shed, timedelta) else None


@dataclass(frozen=True, slots=True)
class QueryParameter:
    """A parameter of a named query; a default of None is SQL's NULL."""

    name: str
    type: ParameterType
    default: ParameterValue


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """A SELECT over views that clients call by its name, and can subscribe to."""

    name: str
    sql: str  # for DuckDB, with parameters as `$n`
    parameters: tuple[QueryParameter, ...]
    key: tuple[str, ...] | None  # result columns that identify a row in its changes
    views: tuple[str, ...]  # that it reads
    description: str
    location: SourceLocation
