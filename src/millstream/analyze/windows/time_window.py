"""Tumbling and sliding windows, by time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from millstream.analyze.windows.window_spec import Extent, TimeDomain, Window, WindowSpec
from millstream.syntax.duration import format_duration


@dataclass(frozen=True, slots=True)
class TimeWindowSpec(WindowSpec):
    """Windows of one size. They are tumbling, or sliding if they overlap."""

    size_ms: int  # 0 if it differs from event to event
    slide_ms: int  # between two starts; equal to the size if windows do not overlap
    start_ms: int = 0  # offset of the windows' starts from 1970, modulo the slide

    @classmethod
    def of(
        cls, extent: Extent, stream: str, time: TimeDomain, lateness: Mapping[str, int]
    ) -> TimeWindowSpec:
        return cls(stream, time, lateness, extent.size, extent.slide, extent.start)

    @property
    def has_fixed_size(self) -> bool:
        return self.size_ms > 0

    @property
    def text(self) -> str:
        size = format_duration(timedelta(milliseconds=self.size_ms)) if self.size_ms else "varies"
        if self.slide_ms >= self.size_ms:
            return self._by_time("tumbling", size)
        slide = format_duration(timedelta(milliseconds=self.slide_ms))
        return self._by_time("sliding", f"{size} every {slide}")

    def assign(self, time: int) -> list[Window]:
        newest = time - (time - self.start_ms) % self.slide_ms
        starts = range(newest, time - self.size_ms, -self.slide_ms)
        return [(start, start + self.size_ms) for start in reversed(starts)]
