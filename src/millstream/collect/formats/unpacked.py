"""The events of a body, the limits for a body, and the refusal of a whole body."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from millstream.errors import InvalidEvent, MillstreamError

_MIB = 1024 * 1024


class BodyRefused(MillstreamError):
    """A body that cannot be read as a whole; `status` is the HTTP status to answer with."""

    def __init__(self, message: str, *, status: int, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.status = status


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for one body. Beyond the first two it is refused; beyond the others, one event is."""

    max_body: int = 8 * _MIB  # bytes, decompressed
    max_events: int = 100_000
    max_line: int = _MIB  # bytes of a line of NDJSON, or of a row of CSV
    max_depth: int = 500  # nested objects and arrays
    max_event: int = 900_000  # bytes
    max_columns: int = 10_000  # of CSV; beyond, the body is refused too


class UnpackedBody(msgspec.Struct):
    """A body's events, in their order.

    `attributes` are CloudEvents attributes, parallel to `values`; None if no event has any.
    `faults` are the errors of events, by index, that the stream's schema cannot find: these events
    are rejected without validation.
    """

    values: list[bytes]
    attributes: list[dict[str, str]] | None = None
    faults: dict[int, InvalidEvent] = {}  # msgspec creates a new one each time


def too_many(found: int, limits: Limits) -> BodyRefused:
    """The refusal of a body with too many events."""
    return BodyRefused(
        f"the body holds {found} events or more, of at most {limits.max_events}",
        status=413,
        remedy="split it into several requests, or raise collect.max_events",
    )


def line_too_long(length: int, limits: Limits) -> InvalidEvent:
    """The error of an event on a line that is too long."""
    return InvalidEvent(
        f"the line has {length} bytes, of at most {limits.max_line}",
        remedy="send a smaller event, or raise collect.max_line",
    )
