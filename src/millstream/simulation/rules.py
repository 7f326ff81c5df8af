"""Predicts the outcome of each sent event: the rules of docs/explanation/time.md in Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from millstream.simulation.faults import SentEvent
from millstream.simulation.windows import Window, Windows, window_json

Outcome = Literal["logged", "duplicate", "future"]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Predicted:
    """An event that was sent, and its outcome."""

    sending: SentEvent
    outcome: Outcome
    watermark: int | None = None  # of the collector, if the event is older

    def is_late_for(self, window: Window, lateness: int) -> bool:
        """Whether it is too late for the window: then it is in the late topic, not in the row."""
        return self.watermark is not None and self.watermark >= window.end + lateness

    def is_late_for_joins(self, lateness: int) -> bool:
        """Whether it is too late for a join of streams."""
        return self.watermark is not None and self.watermark >= self.sending.at + lateness

    def corrects(self, window: Window) -> bool:
        """Whether it came after the window's end, when the row may have been final."""
        return self.watermark is not None and self.watermark >= window.end


def predict(sendings: Iterable[SentEvent]) -> Iterator[Predicted]:
    """The outcome of each event, if one collector receives only these, in this order."""
    watermark: int | None = None
    seen: set[str] = set()
    for sending in sendings:
        if sending.id in seen:
            yield Predicted(sending, "duplicate")
            continue
        seen.add(sending.id)
        if sending.future:
            yield Predicted(sending, "future")
            continue
        behind = watermark is not None and sending.at < watermark
        yield Predicted(sending, "logged", watermark if behind else None)
        watermark = sending.at if watermark is None else max(watermark, sending.at)


def with_outcome(predicted: Iterable[Predicted], outcome: Outcome) -> list[Predicted]:
    return [each for each in predicted if each.outcome == outcome]


def joined(predicted: Iterable[Predicted], lateness: int) -> list[Predicted]:
    """The events of a stream that a join uses, in the order of sending."""
    return [
        each for each in with_outcome(predicted, "logged") if not each.is_late_for_joins(lateness)
    ]


def late_records(
    predicted: Iterable[Predicted], views: Mapping[str, Windows | None], lateness: int
) -> dict[str, Row]:
    """The records of the late topic by event id: the reason, and the windows of each view.

    `None` stands for a view that joins streams: an event is late for all of it, without windows.
    """
    entries: dict[str, Row] = {}
    for each in predicted:
        if each.outcome == "future":
            entries[each.sending.id] = {"reason": "future"}
        if each.outcome != "logged":
            continue
        found = {view: _missed(each, windows, lateness) for view, windows in views.items()}
        if missed := {view: gone for view, gone in found.items() if gone is not None}:
            entries[each.sending.id] = {"reason": "late", "views": missed}
    return entries


def _missed(event: Predicted, windows: Windows | None, lateness: int) -> list[list[str]] | None:
    if windows is None:
        return [] if event.is_late_for_joins(lateness) else None
    gone = [w for w in windows.of(event.sending.at) if event.is_late_for(w, lateness)]
    return sorted(list(window_json(window).values()) for window in gone) or None
