"""Times as milliseconds since the epoch, and as ISO 8601 text."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now_ms() -> int:
    """The current time."""
    return time.time_ns() // 1_000_000


def to_ms(moment: str) -> int:
    """The time of an ISO 8601 text; ValueError if it is none."""
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


def to_iso(milliseconds: float) -> str:
    """The time as text, in UTC: 2026-11-18T10:59:34.000Z."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_ms_or_zero(moment: str) -> int:
    """The time of an ISO 8601 text; 0 if it is none."""
    try:
        return to_ms(moment)
    except ValueError:
        return 0


def format_time(milliseconds: int) -> str:
    """Milliseconds since the epoch as `2026-01-31 12:00:00Z`, for people."""
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
