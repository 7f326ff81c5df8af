"""Settings of the serve tier."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from millstream.web.auth.exposure import check_exposure
from millstream.web.auth.settings import AccessSettings


class ServeSettings(AccessSettings):
    """Settings of a server for clients."""

    port: int = Field(8500, ge=0, le=65535, description="The port to listen on; 0: any free one.")
    recent_changes: int = Field(
        10_000,
        ge=1,
        description="Changes of each view held in memory for clients that resume; "
        "older ones are read from Kafka.",
    )
    advertised_url: str = Field(
        "",
        description="Where clients reach this server, as http://10.0.0.7:8500; members of groups "
        "are sent there by other servers. Empty: the address it listens on.",
    )
    max_groups: int = Field(
        100, ge=0, description="Groups of an app; each has a topic and a consumer group in Kafka."
    )
    newest_rows: int = Field(
        10_000, ge=1, description="Rows held in memory of each view that has no key."
    )
    replay_limit: int = Field(
        100_000,
        ge=0,
        description="Records read from Kafka for one client that resumes; one that is further "
        "behind gets a gap.",
    )
    buffer_bytes: int = Field(
        256 * 1024, ge=1024, description="Unsent bytes per client at which sending to it pauses."
    )
    page_bytes: int = Field(
        256 * 1024,
        ge=1024,
        description="Bytes of a page of a snapshot, about; a page has at least one row.",
    )
    max_frame_bytes: int = Field(
        64 * 1024, ge=1024, description="The largest WebSocket message a client may send."
    )
    max_connections_per_caller: int = Field(
        1024,
        ge=1,
        description="Maximum connections (WebSockets and streams of events) of one caller, over "
        "all of its addresses; more: 429.",
    )
    max_subscriptions: int = Field(100, ge=1, description="Subscriptions on one WebSocket.")
    drain_seconds: float = Field(
        5.0,
        ge=0,
        description="Seconds over which a server that gets SIGTERM sends its clients to other "
        "servers. It ends as soon as no client is left.",
    )
    ping_seconds: float = Field(
        30.0, gt=0, description="Idle seconds before a client is sent a ping."
    )
    query_seconds: float = Field(
        5.0,
        gt=0,
        description="Maximum time of an SQL query, or of a filter over the rows of a view.",
    )
    query_rows: int = Field(10_000, ge=1, description="Maximum rows that an SQL query returns.")
    query_bytes: int = Field(
        16 * 1024 * 1024, ge=1024, description="Maximum bytes of the answer to an SQL query."
    )
    query_memory: str = Field(
        "512MB", description="Memory for SQL queries and the tables that they read."
    )
    live_query_seconds: float = Field(
        0.1, gt=0, description="Minimum time between two evaluations of a live query."
    )
    live_query_rows: int = Field(
        1_000, ge=1, description="Maximum rows of a live query; one with more gets an error."
    )
    live_query_bytes: int = Field(
        1024 * 1024, ge=1024, description="Maximum bytes of a live query's rows."
    )
    live_queries: int = Field(
        100,
        ge=1,
        description="Live queries at once; subscribers with the same parameters share one.",
    )
    live_sql_per_caller: int = Field(
        20, ge=0, description="Subscriptions of one caller to SQL of its own; 0: none."
    )
    origins: list[str] = Field(
        default_factory=list, description="The old name of cors_origins; both lists count."
    )
    rate: float = Field(
        0.0,
        ge=0,
        description="Requests a second for each login (or address, without logins), WebSockets "
        "that connect included; beyond it, 429. 0: no limit.",
    )

    def check_exposure(self) -> None:
        """SettingsError if anybody on the network could read without `insecure`."""
        check_exposure(
            self,
            tier="serve",
            has_login=bool(self.auth or self.tls_client_ca),
            has_tls=bool(self.tls_certificate),
            remedy="set serve.auth (for key, `millstream keys create` makes one), or ",
        )

    @model_validator(mode="before")
    @classmethod
    def _origins_have_one_meaning(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("origins"), list):
            both = [*values.get("cors_origins", []), *values["origins"]]
            return {**values, "cors_origins": list(dict.fromkeys(both))}
        return values
