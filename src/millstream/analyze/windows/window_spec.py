"""The windows that a view groups by: what every kind of window answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

TimeDomain = Literal["event", "stream"]
Window = tuple[int, int]  # start and end, in milliseconds since the epoch


@dataclass(frozen=True, slots=True)
class Extent:
    """Size and starts of windows, in milliseconds; all 0 if the size differs between events."""

    size: int
    slide: int
    start: int


@dataclass(frozen=True, slots=True)
class WindowSpec(ABC):
    """The windows of one view. Each kind of window is a subclass."""

    # A watermark passes the end of a window. Until then its row is provisional, then final, and
    # late events correct it.
    ends_by_time: ClassVar[bool] = True
    # Micro-batches give the same rows as real-time mode, so that a rebuild can replay the log in
    # batches.
    replays_in_batches: ClassVar[bool] = True
    # A batch over the whole log needs another plan than the streaming query.
    has_batch_plan: ClassVar[bool] = False
    # Why rows cannot be estimated from a sample of the events; empty: they can.
    why_no_sample: ClassVar[str] = ""
    # When rows are written; empty: as for groups without windows.
    trigger: ClassVar[str] = ""
    # Spark needs a column to group by besides the window.
    needs_groups: ClassVar[bool] = False
    # The moment from which state and lateness are counted.
    after_end: ClassVar[str] = "after its end"

    stream: str  # the first of the streams whose time it is
    time: TimeDomain
    lateness_by_stream: Mapping[str, int]  # of all inputs, in milliseconds

    @property
    def lateness_ms(self) -> int:
        return self.lateness_by_stream.get(self.stream, 0)

    @property
    def has_fixed_size(self) -> bool:
        """Whether all windows have the same size, so that an event's windows are known."""
        return True

    @property
    @abstractmethod
    def text(self) -> str:
        """The windows in words, as `millstream plan` prints them."""

    @abstractmethod
    def assign(self, time: int) -> list[Window]:
        """The windows that an event of that time is in, the oldest first."""

    def _by_time(self, kind: str, size: str) -> str:
        return f"{kind}, {size}, by {self.time} time of {', '.join(self.lateness_by_stream)}"
