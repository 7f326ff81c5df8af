"""Which windows an instant falls into, and which events are in each window's row."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from millstream.simulation.rules import Judged


class Window(NamedTuple):
    """From `start` until before `end`."""

    start: int
    end: int


class Windows(Protocol):
    def of(self, at: int) -> Iterator[Window]:
        """Those that an instant falls into."""


@dataclass(frozen=True, slots=True)
class Sliding:
    """Windows of one size, one beginning each `slide`."""

    size: int
    slide: int

    def of(self, at: int) -> Iterator[Window]:
        start = at - at % self.slide
        while start + self.size > at:
            yield Window(start, start + self.size)
            start -= self.slide


class Tumbling(Sliding):
    """Windows side by side."""

    __slots__ = ()

    def __init__(self, size: int) -> None:
        super().__init__(size, size)


K = TypeVar("K", bound=Hashable)


def grouped(
    judged: Iterable[Judged],
    windows: Windows,
    lateness: int,
    by: Callable[[Mapping[str, Any]], K],
) -> dict[tuple[Window, K], list[Judged]]:
    """The events in each row of a windowed view, in the order in which they were sent."""
    rows: dict[tuple[Window, K], list[Judged]] = {}
    for each in judged:
        if each.fate != "logged":
            continue
        for window in windows.of(each.sending.at):
            if not each.is_late_for(window, lateness):
                rows.setdefault((window, by(each.sending.event)), []).append(each)
    return rows


def state_of(window: Window, events: Sequence[Judged]) -> str:
    """What a row says of itself in the end, when it was given time before the stragglers came.

    An event that comes after its window's end but before the row was called final changes the row
    and leaves it `final`: then it is a matter of moments which of the two it is.
    """
    if not any(each.corrects(window) for each in events) or len(events) == 1:
        return "final"
    stragglers = sum(each.sending.straggler for each in events)
    return "corrected" if 0 < stragglers < len(events) else "final or corrected"


def written(window: Window) -> dict[str, str]:
    """As rows write it."""
    return {"start": instant(window.start), "end": instant(window.end)}


def instant(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
