"""What will run, as `millstream plan` prints it: plain values, known without Kafka."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from millstream.audit import Column, ViewDescription

RunMode = Literal["real_time", "micro_batch"]
Lineage = Literal["revision", "position", "batch", "none"]

_GUARANTEES: dict[Lineage, str] = {
    "revision": "each event counted once; after a crash no number goes backwards",
    "position": "each event's rows once, in order per source partition",
    "batch": "each row once: a batch that is repeated after a crash is recognised by its number",
    "none": "no event lost; after a crash some rows come again",
}


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """How one view will be kept up to date."""

    name: str
    inputs: tuple[str, ...]
    reads: tuple[str, ...]  # topics
    topic: str
    key: tuple[str, ...] | None
    columns: tuple[Column, ...]
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
