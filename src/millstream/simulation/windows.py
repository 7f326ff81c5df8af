"""Which windows contain a time, and which events are in each window's row."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from millstream.simulation.rules import Predicted


class Window(NamedTuple):
    """From `start` until before `end`."""

    start: int
    end: int


class Windows(Protocol):
    def of(self, at: int) -> Iterator[Window]:
        """The windows that contain this time."""


@dataclass(frozen=True, slots=True)
class Sliding:
    """Windows of one size; one starts every `slide`."""

    size: int
    slide: int

    def of(self, at: int) -> Iterator[Window]:
        start = at - at % self.slide
        while start + self.size > at:
            yield Window(start, start + self.size)
            start -= self.slide


class Tumbling(Sliding):
    """Windows that do not overlap."""

    __slots__ = ()

    def __init__(self, size: int) -> None:
        super().__init__(size, size)


K = TypeVar("K", bound=Hashable)


def grouped(
    predicted: Iterable[Predicted],
    windows: Windows,
    lateness: int,
    by: Callable[[Mapping[str, Any]], K],
) -> dict[tuple[Window, K], list[Predicted]]:
    """The events in each row of a windowed view, in the order of sending."""
    rows: dict[tuple[Window, K], list[Predicted]] = {}
    for each in predicted:
        if each.outcome != "logged":
            continue
        for window in windows.of(each.sending.at):
            if not each.is_late_for(window, lateness):
                rows.setdefault((window, by(each.sending.event)), []).append(each)
    return rows


def state_of(window: Window, events: Sequence[Predicted]) -> str:
    """The final state of a row, if rows had time to become final before the stragglers came.

    An event that comes after its window's end, but before the row was final, changes the row and
    leaves it `final`. Then both states are possible, depending on the timing.
    """
    if not any(each.corrects(window) for each in events) or len(events) == 1:
        return "final"
    stragglers = sum(each.sending.straggler for each in events)
    return "corrected" if 0 < stragglers < len(events) else "final or corrected"


def window_json(window: Window) -> dict[str, str]:
    """The window as in a row's JSON."""
    return {"start": iso_time(window.start), "end": iso_time(window.end)}


def iso_time(milliseconds: int) -> str:
    """The time as in a row's JSON."""
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
