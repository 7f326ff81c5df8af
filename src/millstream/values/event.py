"""An event as the log stores it: the sender's bytes, and Kafka headers about them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import xxhash

# Kafka headers: the CloudEvents binding, plus collector id, sequence number and fingerprint.
SPECVERSION = "ce_specversion"
ID = "ce_id"
SOURCE = "ce_source"
TYPE = "ce_type"
TIME = "ce_time"
TRACEPARENT = "ce_traceparent"
CONTENT_TYPE = "content-type"
COLLECTOR = "ce_collector"
SEQUENCE = "ce_sequence"
INDEX = "ce_index"  # its index in the journal entry of that sequence number; left out when 0
FINGERPRINT = "ce_fingerprint"
CORRELATION = "ce_correlationid"
SAMPLED = "ce_sampledrate"  # the share of events that shedding kept; left out when 1
# Only on an event that arrived out of order: its stream's watermark before it, in milliseconds
# since the epoch. This alone decides whether the event is late for a window.
WATERMARK = "ce_watermark"
INVALID = "ce_invalid"  # why it does not fit the schema of a stream with on_invalid="keep"
# On records of a rejected topic: the reason, and the field.
REASON = "reason"
FIELD = "field"
# On records of a late topic: the reason, by how much, and the windows that miss the event.
LATE_REASON = "late_reason"
LATE_BY = "late_by_ms"
LATE_VIEWS = "late_views"
LATE_ERROR = "late_error"  # only if a view's query failed on the event: Spark's message


@dataclass(frozen=True, slots=True)
class Event:
    """One event on its way into the log."""

    stream: str
    value: bytes
    key: str | None
    collected_at: int  # milliseconds since the epoch; becomes the record's timestamp
    headers: dict[str, str] = field(default_factory=dict)


def identity(headers: Iterable[tuple[str, bytes | None]]) -> tuple[str, int, int] | None:
    """Collector, sequence number and index: unique. None if Millstream did not write the event."""
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
    """A hash of the bytes, by which duplicates can be found downstream."""
    return xxhash.xxh3_64_hexdigest(value)
