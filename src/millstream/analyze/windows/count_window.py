"""Count windows: a fixed number of events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from millstream.analyze.windows.window_spec import Window, WindowSpec


@dataclass(frozen=True, slots=True)
class CountWindowSpec(WindowSpec):
    """Windows of `size` events of a group, in the order of the log."""

    ends_by_time: ClassVar[bool] = False
    replays_in_batches: ClassVar[bool] = False  # only real-time mode counts events one by one
    has_batch_plan: ClassVar[bool] = True
    why_no_sample: ClassVar[str] = "count windows over a sample hold other events"
    trigger: ClassVar[str] = "when a window is full: its row comes once and does not change"

    size: int
    every: int  # a window ends with each `every` events

    @property
    def text(self) -> str:
        every = "" if self.every == self.size else f" every {self.every:,}"
        return f"count, {self.size:,} events{every}, in the order of {self.stream}"

    def assign(self, time: int) -> list[Window]:
        """None: an event's time does not say which window it is in."""
        return []
