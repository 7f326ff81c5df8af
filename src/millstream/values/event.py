"""An event as the log keeps it: the sender's bytes, and what is known about them in headers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import xxhash

# CloudEvents' Kafka binding, and ours: who collected it, as the how-manieth, and what.
SPECVERSION = "ce_specversion"
ID = "ce_id"
SOURCE = "ce_source"
TYPE = "ce_type"
TIME = "ce_time"
TRACEPARENT = "ce_traceparent"
CONTENT_TYPE = "content-type"
COLLECTOR = "ce_collector"
SEQUENCE = "ce_sequence"
INDEX = "ce_index"  # the event's place in the entry of that sequence; left out when 0
FINGERPRINT = "ce_fingerprint"
CORRELATION = "ce_correlationid"
SAMPLED = "ce_sampledrate"  # the share of events like it that was kept; left out when 1
# Only on an event that came out of order: its stream's watermark before it, in milliseconds since
# the epoch. How late it is for a window is decided by that alone, whenever it is read.
WATERMARK = "ce_watermark"
INVALID = "ce_invalid"  # why an event does not fit its stream's schema, which keeps it nevertheless
# On records of a rejected topic: why, and where in the event.
REASON = "reason"
FIELD = "field"
# On records of a late topic: why, by how much, and which windows of which views it is not in.
LATE_REASON = "late_reason"
LATE_BY = "late_by_ms"
LATE_VIEWS = "late_views"
LATE_ERROR = "late_error"  # only where a view's query failed on the event: Spark's words


@dataclass(frozen=True, slots=True)
class Event:
    """One event on its way into the log."""

    stream: str
    value: bytes
    key: str | None
    collected_at: int  # milliseconds since the epoch; becomes the record's timestamp
    headers: dict[str, str] = field(default_factory=dict)


def identity(headers: Iterable[tuple[str, bytes | None]]) -> tuple[str, int, int] | None:
    """Collector, sequence and index: no other event has the same. None if it is not one of ours."""
    given = dict(headers)
    try:
        return (
            (given[COLLECTOR] or b"").decode(),
            int(given[SEQUENCE] or b""),
            int(given.get(INDEX) or b"0"),
        )
    except (KeyError, ValueError):
        return None


def fingerprint(value: bytes) -> str:
    """The same text for the same bytes, so that duplicates can be found anywhere downstream."""
    return xxhash.xxh3_64_hexdigest(value)
