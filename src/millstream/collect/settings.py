"""Settings of the collect tier."""

from __future__ import annotations

from pydantic import Field, model_validator

from millstream.connectors.settings import SourceSettings
from millstream.web.auth.exposure import check_exposure
from millstream.web.auth.settings import AccessSettings

_MIB = 1024 * 1024


class CollectSettings(AccessSettings, SourceSettings):
    """The collector: where senders send events, and how it reads sources."""

    port: int = Field(8400, ge=0, le=65535, description="The port to listen on; 0: any free port.")
    workers: int = Field(
        1,
        ge=1,
        le=64,
        description="Collector processes that share the port, each with its own journal. Every "
        "limit below, and of the journal, applies to each process. You can change it at any "
        "start; see docs/guides/scaling.md.",
    )
    max_depth: int = Field(
        500,
        ge=1,
        le=1000,
        description="Maximum nesting depth of objects and arrays; a deeper event is rejected "
        "alone. Spark reads up to 1000.",
    )
    max_pending_bytes: int = Field(
        64 * _MIB,
        ge=1,
        description="Maximum bytes on the way to Kafka. Beyond, events wait on disk, in the "
        "journal. At least max_body.",
    )
    max_pending_events: int = Field(
        50_000, ge=1, description="Maximum events on the way to Kafka, likewise."
    )
    max_body_memory: int = Field(
        256 * _MIB,
        ge=1,
        description="Maximum bytes of bodies in memory before they are in the journal or on the "
        "way to Kafka. Beyond, bodies wait to be read. At least max_body.",
    )
    room_timeout: float = Field(
        2.0,
        ge=0,
        description="Seconds that a request waits for room (in memory, then in the journal or on "
        "the way to Kafka) before it is answered with 503.",
    )
    dedup_ids: int = Field(
        1_000_000,
        ge=1,
        description="Maximum number of senders' ids that are remembered, to recognise retries. "
        "Beyond, the oldest are forgotten before their stream's dedup window ends. About 150 bytes "
        "each.",
    )
    ack_timeout: float = Field(
        20.0,
        gt=0,
        description="Seconds that a request with ack=log waits for Kafka before it is answered "
        "with 202: its events are on disk then. Should be longer than a restart of Kafka.",
    )
    body_timeout: float = Field(
        30.0, gt=0, description="Seconds that a sender may take to send a request's body."
    )
    stop_timeout: float = Field(
        5.0, gt=0, description="Seconds that open requests may still take when the tier stops."
    )
    accept_schema_change: bool = Field(
        False,
        description="Start although events in the log may not fit a stream's changed schema; the "
        "flag --accept-schema-change sets it for one start.",
    )

    def check_exposure(self) -> None:
        """SettingsError if anyone on the network could send events."""
        check_exposure(
            self,
            tier="collect",
            has_login=bool(self.auth or self.tls_client_ca),
            has_tls=bool(self.tls_certificate),
            remedy="set collect.auth (for key, `millstream keys create` makes one), or ",
        )

    @model_validator(mode="after")
    def _every_body_fits(self) -> CollectSettings:
        for name in ("max_pending_bytes", "max_body_memory"):
            if (most := getattr(self, name)) < self.max_body:
                raise ValueError(
                    f"{name} is {most}, below max_body ({self.max_body}): the largest body could "
                    "never be accepted; raise it, or lower max_body"
                )
        return self
