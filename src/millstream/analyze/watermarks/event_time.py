"""Reads the event time of a record, and nothing else of it: this runs for every event."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from millstream.schema.scalars import EARLIEST, LATEST, MILLISECONDS_FROM

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_reader(column: str) -> Callable[[bytes | None], int | None]:
    """A function from a record's value to its time in milliseconds, rounded down; None if none."""
    fields: list[Any] = [("time", str | int | None, None)]
    event: Any = msgspec.defstruct("Event", fields, rename={"time": column}, gc=False)
    decode = msgspec.json.Decoder(event).decode

    def read(value: bytes | None) -> int | None:
        try:
            time = decode(value or b"").time
            return None if time is None else _milliseconds(time)
        except (ValueError, OverflowError):  # msgspec's errors are ValueErrors too
            return None

    return read


def _milliseconds(time: str | int) -> int | None:
    if isinstance(time, int):
        milliseconds = time if abs(time) >= MILLISECONDS_FROM else time * 1000
        return milliseconds if EARLIEST <= milliseconds <= LATEST else None
    moment = datetime.fromisoformat(time)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
