"""Settings of the analysis tier."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel, ConfigDict, Field, field_validator

from millstream.pipeline.model import OnDataLoss
from millstream.syntax.duration import parse_duration


class AnalyzeSettings(BaseModel):
    """How Spark runs the continuous queries."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    spark_master: str = Field(
        "", description="URL of a Spark master; empty: local, with enough task slots."
    )
    checkpoint_interval: str = Field(
        "5 minutes",
        description="How often real-time queries commit. A restart repeats at most this much. "
        "At least 5 seconds.",
    )
    shuffle_partitions: int = Field(
        1, ge=1, description="Tasks that share a query's groups; each needs a task slot."
    )
    batch_events: int = Field(
        200_000,
        ge=1,
        description="Most events that a micro-batch reads of each input. It bounds memory, and "
        "what a restart repeats.",
    )
    drift_sample: int = Field(
        200,
        ge=0,
        description="Events a second of each stream that are checked for drift; 0: none.",
    )
    slack: str = Field(
        "1 hour",
        description="How much longer than its lateness a window's state is kept. One partition or "
        "collector may be this much behind another without an event being missed.",
    )
    idle: str = Field(
        "10 seconds",
        description="A partition without events for this long no longer holds a watermark back. "
        "If all are idle, the watermark follows the clock at this distance.",
    )
    driver_memory: str = Field("1g", description="Heap of Spark's driver, in Java's notation.")
    second_compiler: bool | None = Field(
        None,
        description="Whether Java's second compiler (C2) is used. It halves the cost of an event, "
        "but first uses a core for minutes. By default it is used on machines with four or more "
        "cores, and on a cluster's workers.",
    )
    state_memory: str = Field(
        "256m",
        pattern=r"^[1-9]\d*[mg]$",
        description="Memory for the state of all views in RocksDB, besides the heap; the rest is "
        "on disk.",
    )
    on_data_loss: OnDataLoss = Field(
        "continue",
        description="If retention deleted events before a view read them: `continue` without them, "
        "or `stop` the view. Both report the events.",
    )
    spark: dict[str, str] = Field(
        default_factory=dict, description="Spark configuration; it overrides Millstream's."
    )

    @field_validator("slack")
    @classmethod
    def _is_duration(cls, text: str) -> str:
        parse_duration(text)
        return text

    @field_validator("idle")
    @classmethod
    def _is_positive(cls, text: str) -> str:
        if not parse_duration(text):
            raise ValueError("every partition would always be idle; write '10 seconds'")
        return text

    @field_validator("checkpoint_interval")
    @classmethod
    def _is_long_enough(cls, text: str) -> str:
        if parse_duration(text) < timedelta(seconds=5):
            raise ValueError("Spark's real-time mode needs at least '5 seconds'")
        return text
