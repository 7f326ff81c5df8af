"""Settings of the log."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from millstream.syntax.duration import parse_duration

_SECURITY = ("security.", "sasl.", "ssl.", "enable.ssl.")


class LogSettings(BaseModel):
    """Which Kafka cluster, and how topics are created there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bootstrap: str = Field("", description="An external cluster's servers; empty: embedded broker.")
    security: dict[str, str] = Field(
        default_factory=dict,
        description="Security settings of Kafka clients in librdkafka's names (security.protocol, "
        "sasl.*, ssl.*), for every client and for Spark.",
    )
    port: int = Field(19092, ge=0, le=65535, description="The embedded broker's port; 0: any.")
    memory: str = Field(
        "512m", pattern=r"^\d+[kmgKMG]$", description="The embedded broker's heap, as in 512m."
    )
    partitions: int = Field(1, ge=1, description="Partitions of topics that we create.")
    replication: int = Field(1, ge=1, description="Replicas of topics that we create.")
    retention: str = Field(
        "7 days", description="How long results of views without a key are kept."
    )
    history: str = Field(
        "10 minutes",
        description="How long every change of a table is kept, so that clients can resume; "
        "older ones are compacted to the newest row per key.",
    )

    @field_validator("security")
    @classmethod
    def _only_security(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not name.startswith(_SECURITY):
                raise ValueError(f"{name!r} is not a security setting; they begin with {_SECURITY}")
        return value

    @field_validator("retention", "history")
    @classmethod
    def _durations(cls, value: str) -> str:
        parse_duration(value)
        return value
