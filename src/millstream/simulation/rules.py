"""The outcome of each event that is sent: the rules of docs/explanation/time.md in plain Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from millstream.simulation.faults import Sending
from millstream.simulation.windows import Window, Windows, written

Fate = Literal["logged", "duplicate", "future"]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Judged:
    """An event that was sent, and what its collector made of it."""

    sending: Sending
    fate: Fate
    watermark: int | None = None  # the collector's, if the event is older than that

    def is_late_for(self, window: Window, lateness: int) -> bool:
        """Whether it came too late for the window: it is not in its row, but in the late topic."""
        return self.watermark is not None and self.watermark >= window.end + lateness

    def is_late_for_joins(self, lateness: int) -> bool:
        """Whether it came too late to be joined with another stream's events, or its own's."""
        return self.watermark is not None and self.watermark >= self.sending.at + lateness

    def corrects(self, window: Window) -> bool:
        """Whether it came after the window's end, so that a row may have been final."""
        return self.watermark is not None and self.watermark >= window.end


def judge(sendings: Iterable[Sending]) -> Iterator[Judged]:
    """What one collector makes of events that come one after another, and of nothing else."""
    watermark: int | None = None
    seen: set[str] = set()
    for sending in sendings:
        if sending.id in seen:
            yield Judged(sending, "duplicate")
            continue
        seen.add(sending.id)
        if sending.future:
            yield Judged(sending, "future")
            continue
        behind = watermark is not None and sending.at < watermark
        yield Judged(sending, "logged", watermark if behind else None)
        watermark = sending.at if watermark is None else max(watermark, sending.at)


def of_kind(judged: Iterable[Judged], fate: Fate) -> list[Judged]:
    return [each for each in judged if each.fate == fate]


def joined(judged: Iterable[Judged], lateness: int) -> list[Judged]:
    """The events of a stream that a join of streams is made of, in the order of their sending."""
    return [each for each in of_kind(judged, "logged") if not each.is_late_for_joins(lateness)]


def late_entries(
    judged: Iterable[Judged], views: Mapping[str, Windows | None], lateness: int
) -> dict[str, Row]:
    """What the late topic holds, by the event's id: why, and which windows of which view.

    Of a view that joins streams, `None`, it is not in any row, and no window is named.
    """
    entries: dict[str, Row] = {}
    for each in judged:
        if each.fate == "future":
            entries[each.sending.id] = {"reason": "future"}
        if each.fate != "logged":
            continue
        found = {view: _missed(each, windows, lateness) for view, windows in views.items()}
        if missed := {view: gone for view, gone in found.items() if gone is not None}:
            entries[each.sending.id] = {"reason": "late", "views": missed}
    return entries


def _missed(event: Judged, windows: Windows | None, lateness: int) -> list[list[str]] | None:
    if windows is None:
        return [] if event.is_late_for_joins(lateness) else None
    gone = [w for w in windows.of(event.sending.at) if event.is_late_for(w, lateness)]
    return sorted(list(written(window).values()) for window in gone) or None
