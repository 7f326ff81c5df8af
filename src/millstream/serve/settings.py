"""Settings of the access tier."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ServeSettings(BaseModel):
    """Where clients get answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", description="The address to listen on.")
    port: int = Field(8500, ge=0, le=65535, description="The port to listen on; 0: any free one.")
    recent_changes: int = Field(
        10_000,
        ge=1,
        description="Changes of each view held in memory for clients that resume; "
        "older ones are read from Kafka.",
    )
    newest_rows: int = Field(
        10_000, ge=1, description="Rows held in memory of each view that has no key."
    )
    replay_limit: int = Field(
        100_000,
        ge=0,
        description="Records read from Kafka for one client that resumes; further behind is a gap.",
    )
    buffer_bytes: int = Field(
        256 * 1024, ge=1024, description="Unsent bytes per client at which sending to it pauses."
    )
    max_frame_bytes: int = Field(
        64 * 1024, ge=1024, description="The largest WebSocket message a client may send."
    )
    max_subscriptions: int = Field(100, ge=1, description="Subscriptions on one WebSocket.")
    ping_seconds: float = Field(
        30.0, gt=0, description="Idle seconds before a client is asked whether it is still there."
    )
    query_seconds: float = Field(5.0, gt=0, description="The longest that a SQL query may run.")
    query_rows: int = Field(10_000, ge=1, description="The most rows that a SQL query returns.")
    query_memory: str = Field("512MB", description="Memory for SQL queries and what they read.")
    origins: list[str] = Field(
        default_factory=list,
        description="Other origins whose pages may open a WebSocket, as in https://example.org.",
    )
