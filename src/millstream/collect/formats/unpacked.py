"""What a body is unpacked into, within which limits, and the refusal of a whole body."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from millstream.errors import InvalidEvent, MillstreamError

_MIB = 1024 * 1024


class BodyRefused(MillstreamError):
    """A body of which nothing can be taken in; `status` is HTTP's word for why."""

    def __init__(self, message: str, *, status: int, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.status = status


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one body may hold. Beyond the first two it is refused; the others cost one event."""

    max_body: int = 8 * _MIB  # bytes, decompressed
    max_events: int = 100_000
    max_line: int = _MIB  # bytes of a line of NDJSON, or of a row of CSV
    max_depth: int = 500  # objects and arrays in each other
    max_event: int = 900_000  # bytes
    max_columns: int = 10_000  # of CSV; beyond, the body is refused


class UnpackedBody(msgspec.Struct):
    """A body's events, in their order.

    `attributes` are CloudEvents attributes, parallel to `values`; None when no event has any.
    `faults` says, by place, what is wrong with an event beyond what the stream's schema can tell:
    it is to be rejected with that reason, without asking the validator.
    """

    values: list[bytes]
    attributes: list[dict[str, str]] | None = None
    faults: dict[int, InvalidEvent] = {}  # msgspec makes a new one each time


def too_many(found: int, limits: Limits) -> BodyRefused:
    """The refusal of a body that holds more events than it may."""
    return BodyRefused(
        f"the body holds {found} events or more, of at most {limits.max_events}",
        status=413,
        remedy="split it into several requests, or raise collect.max_events",
    )


def line_too_long(length: int, limits: Limits) -> InvalidEvent:
    """The fault of an event on a line that is longer than lines may be."""
    return InvalidEvent(
        f"the line has {length} bytes, of at most {limits.max_line}",
        remedy="send a smaller event, or raise collect.max_line",
    )
