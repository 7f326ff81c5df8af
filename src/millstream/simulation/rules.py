"""What becomes of each event that is sent: the rules of docs/time.md, in plain Python."""

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


def late_entries(
    judged: Iterable[Judged], views: Mapping[str, Windows], lateness: int
) -> dict[str, Row]:
    """What the late topic holds, by the event's id: why, and which windows of which view."""
    entries: dict[str, Row] = {}
    for each in judged:
        if each.fate == "future":
            entries[each.sending.id] = {"reason": "future"}
        if each.fate != "logged":
            continue
        missed = {
            view: found
            for view, windows in views.items()
            if (
                found := sorted(
                    list(written(window).values())
                    for window in windows.of(each.sending.at)
                    if each.is_late_for(window, lateness)
                )
            )
        }
        if missed:
            entries[each.sending.id] = {"reason": "late", "views": missed}
    return entries
