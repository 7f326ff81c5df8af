"""Session windows: events without a longer gap between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from millstream.analyze.windows.window_spec import Extent, TimeDomain, Window, WindowSpec
from millstream.syntax.duration import format_duration


@dataclass(frozen=True, slots=True)
class SessionWindowSpec(WindowSpec):
    """Sessions that end after a gap without events."""

    needs_groups: ClassVar[bool] = True
    why_no_sample: ClassVar[str] = "a sample splits sessions, because events in between are missing"
    after_end: ClassVar[str] = "after its last event and the gap"

    gap_ms: int  # 0 if it differs from event to event

    @classmethod
    def of(
        cls, extent: Extent, stream: str, time: TimeDomain, lateness: Mapping[str, int]
    ) -> SessionWindowSpec:
        return cls(stream, time, lateness, extent.size)

    @property
    def has_fixed_size(self) -> bool:
        return self.gap_ms > 0

    @property
    def text(self) -> str:
        gap = f" of {format_duration(timedelta(milliseconds=self.gap_ms))}" if self.gap_ms else ""
        return self._by_time("session", f"ends after a gap{gap}")

    def assign(self, time: int) -> list[Window]:
        """The part of its session that the event makes alone: up to the end of the gap."""
        return [(time, time + self.gap_ms)]
