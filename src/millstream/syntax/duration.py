"""Durations as users write them: `10 minutes`, `3 hours`, `500 ms`."""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS = {
    "millisecond": timedelta(milliseconds=1),
    "ms": timedelta(milliseconds=1),
    "second": timedelta(seconds=1),
    "s": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "min": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "h": timedelta(hours=1),
    "day": timedelta(days=1),
    "d": timedelta(days=1),
    "week": timedelta(weeks=1),
}
_MOST_DIGITS = 8  # fits into a timedelta in any unit
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")


def parse_duration(text: str) -> timedelta:
    """The duration in a text; ValueError says what to write instead."""
    total, at = timedelta(), 0
    while match := _PART.match(text.lower(), at):
        unit = _UNITS.get(match[2]) or _UNITS.get(match[2].removesuffix("s"))
        if unit is None or len(match[1]) > _MOST_DIGITS:
            break
        number = float(match[1])
        total += (int(number) if number.is_integer() else number) * unit
        at = match.end()
    if at == 0 or at != len(text):
        raise ValueError(f"{text!r} is not a duration; write it as '10 minutes' or '3 hours'")
    return total


def milliseconds(duration: timedelta) -> int:
    """The duration in whole milliseconds."""
    return duration // _UNITS["ms"]


_WRITTEN = (("day", "d"), ("hour", "h"), ("minute", "min"), ("second", "s"))


def format_duration(duration: timedelta) -> str:
    """The duration as a user would write it, to the millisecond."""
    parts, rest = [], duration
    for word, unit in _WRITTEN:
        count, rest = divmod(rest, _UNITS[unit])
        if count:
            parts.append(f"{count} {word}{'s' if count != 1 else ''}")
    if milliseconds := rest // _UNITS["ms"]:
        parts.append(f"{milliseconds} ms")
    return " ".join(parts) or "0 seconds"
