"""Settings of the log."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class LogSettings(BaseModel):
    """Which Kafka, and how topics are made there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bootstrap: str = Field("", description="An external cluster's servers; empty: embedded broker.")
    security: dict[str, str] = Field(
        default_factory=dict,
        description="Kafka client security settings (security.protocol, sasl.*, ssl.*), passed to every client.",
    )
    port: int = Field(19092, ge=0, le=65535, description="The embedded broker's port; 0: any.")
    memory: str = Field("512m", description="The embedded broker's heap.")
    partitions: int = Field(1, ge=1, description="Partitions of topics that we create.")
    replication: int = Field(1, ge=1, description="Replicas of topics that we create.")
