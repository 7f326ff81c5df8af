"""Settings that every source has: how much it may send at once, and when it is reconnected."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

_MIB = 1024 * 1024


class SourceSettings(BaseModel):
    """Limits on messages, and the pauses between attempts to connect."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_body: int = Field(
        8 * _MIB,
        ge=1,
        description="The largest request body, or message of a source, in bytes; also when it is "
        "decompressed.",
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
        description="Seconds: the longest pause before a source is first connected again.",
    )
    reconnect_most: float = Field(
        15.0,
        gt=0,
        description="Seconds: the longest pause between two attempts, however many failed.",
    )
    ping_after: float = Field(
        15.0, gt=0, description="Seconds of silence after which a source's peer is pinged."
    )
    ping_timeout: float = Field(
        10.0, gt=0, description="Seconds in which it must answer, or the connection counts as dead."
    )
