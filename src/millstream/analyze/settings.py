"""Settings of the analysis tier."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel, ConfigDict, Field, field_validator

from millstream.pipeline.model import OnDataLoss
from millstream.syntax.duration import parse_duration


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
    batch_events: int = Field(
        200_000,
        ge=1,
        description="Events that a micro-batch takes at most of each input: what is behind catches "
        "up in pieces, which bounds memory and what a restart repeats.",
    )
    drift_sample: int = Field(
        200,
        ge=0,
        description="Events of each stream a second whose fields are watched for drift; 0: none.",
    )
    slack: str = Field(
        "1 hour",
        description="How much longer than its lateness a window's state is kept: by as much may "
        "one partition or collector be behind another without an event being missed.",
    )
    idle: str = Field(
        "10 seconds",
        description="How long a partition may bring nothing before it no longer holds a watermark "
        "back; when all are quiet, time goes on that far behind the clock.",
    )
    driver_memory: str = Field("1g", description="Heap of Spark's driver, as Java writes it.")
    second_compiler: bool | None = Field(
        None,
        description="Whether Java's second compiler works, too: it halves what an event costs, but "
        "first takes a core for minutes. Left out: where this machine has four cores or more, and "
        "on a cluster's workers.",
    )
    state_memory: str = Field(
        "256m",
        pattern=r"^[1-9]\d*[mg]$",
        description="What RocksDB keeps of all views' state in memory, beside the heap; the rest "
        "is on disk.",
    )
    on_data_loss: OnDataLoss = Field(
        "continue",
        description="When retention took events before a view came to them: `continue` without "
        "them, or `stop` the view. Either says which.",
    )
    spark: dict[str, str] = Field(
        default_factory=dict, description="Spark configuration that wins over ours."
    )

    @field_validator("slack")
    @classmethod
    def _a_duration(cls, text: str) -> str:
        parse_duration(text)
        return text

    @field_validator("idle")
    @classmethod
    def _more_than_nothing(cls, text: str) -> str:
        if not parse_duration(text):
            raise ValueError("a partition would be idle between two events; write '10 seconds'")
        return text

    @field_validator("checkpoint_interval")
    @classmethod
    def _long_enough(cls, text: str) -> str:
        if parse_duration(text) < timedelta(seconds=5):
            raise ValueError("Spark's real-time mode allows no less than '5 seconds'")
        return text
