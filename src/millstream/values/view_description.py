"""The description of a view, as `analyze` publishes it to the compacted topic of views."""

from __future__ import annotations

from typing import Literal

import msgspec

from millstream.values.hidden_columns import ERROR, STATE


class ViewColumn(msgspec.Struct, frozen=True):
    """A column of a view."""

    name: str
    type: str  # Spark DDL, as in `struct<start:timestamp,end:timestamp>`


class ViewDescription(msgspec.Struct, frozen=True, omit_defaults=True):
    """What servers and clients need to know about a view; its name is the key of its record."""

    name: str
    inputs: list[str]
    key: list[str] | None
    columns: list[ViewColumn]  # the user's columns, without hidden ones
    mode: Literal["real_time", "micro_batch"]
    reason: str  # why this mode was chosen
    guarantee: str
    lineage: Literal["revision", "position", "batch", "none"]
    generation: str  # fingerprint of its plan
    description: str = ""
    keep_ms: int | None = None
    window: str | None = None  # the column that is a time window, if there is one
    trigger: str = "every change"  # when a row is shown
    accumulation: Literal["accumulate", "discard", "retract"] = "accumulate"
    ledger: list[str] = []  # the columns with amounts
    topic: str = ""  # with its rows; empty: the default topic of its name
    weighed: list[str] = []  # columns that may be estimates; `_error` has their errors

    @property
    def has_states(self) -> bool:
        """Whether its rows have a `_state`: those of a table of windows have one."""
        return self.key is not None and self.window is not None

    @property
    def shown_columns(self) -> tuple[ViewColumn, ...]:
        """The user's columns, with `_state` and `_error` if rows have them."""
        columns = tuple(self.columns)
        if self.has_states and STATE not in (column.name for column in columns):
            columns += (ViewColumn(STATE, "string"),)
        if self.weighed:
            errors = ",".join(f"{name}:double" for name in self.weighed)
            columns += (ViewColumn(ERROR, f"struct<{errors}>"),)
        return columns
