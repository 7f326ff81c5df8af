"""Settings of the analysis tier."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel, ConfigDict, Field, field_validator

from millstream.duration import parse_duration


class AnalyzeSettings(BaseModel):
    """How Spark runs the continuous queries."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    spark_master: str = Field("", description="A Spark master; empty: local, with enough slots.")
    checkpoint_interval: str = Field(
        "5 minutes",
        description="How often real-time queries commit, which bounds what a restart repeats; "
        "at least 5 seconds.",
    )
    shuffle_partitions: int = Field(
        1, ge=1, description="Tasks over which a query's groups are spread; each takes a slot."
    )
    driver_memory: str = Field("1g", description="Heap of Spark's driver, as Java writes it.")
    spark: dict[str, str] = Field(
        default_factory=dict, description="Spark configuration that wins over ours."
    )

    @field_validator("checkpoint_interval")
    @classmethod
    def _long_enough(cls, text: str) -> str:
        if parse_duration(text) < timedelta(seconds=5):
            raise ValueError("Spark's real-time mode allows no less than '5 seconds'")
        return text
