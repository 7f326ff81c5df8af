"""Settings of all sources: limits of messages, and reconnecting."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

_MIB = 1024 * 1024


class SourceSettings(BaseModel):
    """Limits of messages, and pauses between attempts to connect."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_body: int = Field(
        8 * _MIB,
        ge=1,
        description="The largest request body, or message of a source, in bytes, before and after "
        "decompression.",
    )
    max_events: int = Field(
        100_000, ge=1, description="Events that one request, or message of a source, may hold."
    )
    max_line: int = Field(
        _MIB,
        ge=1,
        description="The longest line of NDJSON, or row of CSV, in bytes; a longer one is rejected "
        "alone.",
    )
    reconnect_first: float = Field(
        0.5,
        gt=0,
        description="Seconds: the longest pause before the first attempt to reconnect a source.",
    )
    reconnect_most: float = Field(
        15.0,
        gt=0,
        description="Seconds: the longest pause between two attempts, after many failures.",
    )
    ping_after: float = Field(
        15.0, gt=0, description="Seconds of silence after which the peer of a source is pinged."
    )
    ping_timeout: float = Field(
        10.0, gt=0, description="Seconds in which the peer must answer, or it counts as dead."
    )
