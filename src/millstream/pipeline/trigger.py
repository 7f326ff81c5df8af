"""Triggers: when a view outputs a row. Parses the option `trigger`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from millstream.syntax.duration import format_duration, parse_duration

Accumulation = Literal["accumulate", "discard", "retract"]

FORMS = (
    "'every change', 'every 10 seconds', 'every 100 events', 'when n > 100' or 'at the watermark'"
)
_LEAST = timedelta(milliseconds=100)
_MOST_EVENTS = 10**12


@dataclass(frozen=True, slots=True)
class EveryChange:
    """Outputs each change of a row."""

    def __str__(self) -> str:
        return "every change"


@dataclass(frozen=True, slots=True)
class EveryInterval:
    """Outputs the changed rows at each full interval of the clock."""

    interval: timedelta

    def __str__(self) -> str:
        return f"every {format_duration(self.interval)}"


@dataclass(frozen=True, slots=True)
class EveryEvents:
    """Outputs a row after each `count` events in it."""

    count: int

    def __str__(self) -> str:
        return f"every {self.count} events" if self.count != 1 else "every event"


@dataclass(frozen=True, slots=True)
class When:
    """Outputs a row each time that the condition becomes true for it."""

    condition: str

    def __str__(self) -> str:
        return f"when {self.condition}"


@dataclass(frozen=True, slots=True)
class AtWatermark:
    """Outputs a window's row when the watermark passes its end, and at each correction."""

    def __str__(self) -> str:
        return "at the watermark"


EVERY_CHANGE = EveryChange()
Trigger = EveryChange | EveryInterval | EveryEvents | When | AtWatermark


def parse_trigger(text: str) -> Trigger:
    """The trigger that a user wrote; ValueError says what to write instead."""
    words = " ".join(text.split())
    lowered = words.lower()
    if lowered == "every change":
        return EVERY_CHANGE
    if lowered == "at the watermark":
        return AtWatermark()
    if lowered.startswith("when "):
        return When(text.split(None, 1)[1].strip())
    if match := re.fullmatch(r"every (?:([\d_]+) )?events?", lowered):
        return _events(text, match[1])
    if lowered.startswith("every "):
        return _interval(text, lowered.removeprefix("every "))
    raise ValueError(f"{text!r} is no trigger; write {FORMS}")


def _events(text: str, digits: str | None) -> EveryEvents:
    count = 1 if digits is None else int(digits.replace("_", "") or 0)
    if not 1 <= count <= _MOST_EVENTS:
        raise ValueError(f"{text!r} counts to {count}; write 'every 100 events'")
    return EveryEvents(count)


def _interval(text: str, duration: str) -> EveryInterval:
    try:
        interval = parse_duration(duration)
    except ValueError:
        raise ValueError(f"{text!r} is no trigger; write {FORMS}") from None
    if interval < _LEAST:
        raise ValueError(
            f"{text!r} is too often; write 'every {format_duration(_LEAST)}' or more, "
            "or 'every change'"
        )
    return EveryInterval(interval)
