"""The description of a view, as `analyze` publishes it to the compacted topic of views."""

from __future__ import annotations

from typing import Literal

import msgspec

from millstream.values.hidden_columns import ERROR, STATE


class ViewColumn(msgspec.Struct, frozen=True):
    name: str
    type: str  # Spark DDL, as in `struct<start:timestamp,end:timestamp>`


class ViewDescription(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that a server or client needs to know about a view; the key of its record is the name."""

    name: str
    inputs: list[str]
    key: list[str] | None
    columns: list[ViewColumn]  # the user's columns, without lineage
    mode: Literal["real_time", "micro_batch"]
    reason: str  # why that mode
    guarantee: str
    lineage: Literal["revision", "position", "batch", "none"]
    generation: str  # the fingerprint of its plan
    description: str = ""
    keep_ms: int | None = None
    window: str | None = None  # the column that is a time window, if one is
    trigger: str = "every change"  # when a row is shown
    accumulation: Literal["accumulate", "discard", "retract"] = "accumulate"
    ledger: list[str] = []  # the columns whose amounts are entered
    topic: str = ""  # that holds its rows; empty: the one that bears its name
    weighed: list[str] = []  # the columns that may be estimates, whose errors are in `_error`

    @property
    def has_states(self) -> bool:
        """Whether its rows are provisional, final or corrected: those of windows are."""
        return self.key is not None and self.window is not None

    @property
    def shown_columns(self) -> tuple[ViewColumn, ...]:
        """The user's columns, and what rows say of themselves."""
        columns = tuple(self.columns)
        if self.has_states and STATE not in (column.name for column in columns):
            columns += (ViewColumn(STATE, "string"),)
        if self.weighed:
            errors = ",".join(f"{name}:double" for name in self.weighed)
            columns += (ViewColumn(ERROR, f"struct<{errors}>"),)
        return columns
