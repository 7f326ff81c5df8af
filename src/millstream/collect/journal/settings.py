"""Settings of the journal."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

_MIB = 1024 * 1024


class JournalSettings(BaseModel):
    """The journal: the collector stores events on disk until Kafka has them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_bytes: int = Field(
        1024 * _MIB,
        ge=8192,
        description="Maximum size of the journal's files, per worker. When it is reached, "
        "senders get a 503. At least twice segment_bytes.",
    )
    segment_bytes: int = Field(
        64 * _MIB,
        ge=4096,
        le=1024 * _MIB,
        description="Size at which a new file is begun. A file is deleted when Kafka has "
        "everything in it.",
    )
    max_waiting_bytes: int = Field(
        64 * _MIB,
        ge=1,
        description="Maximum bytes in memory that wait for the disk. Beyond, senders get a 503.",
    )
    retry_seconds: float = Field(
        1.0,
        gt=0,
        description="Seconds between two attempts to begin a new file after the disk failed.",
    )

    @model_validator(mode="after")
    def _a_file_can_be_emptied_while_the_next_is_filled(self) -> JournalSettings:
        if self.max_bytes < 2 * self.segment_bytes:
            raise ValueError(
                f"max_bytes is {self.max_bytes}, less than two files of segment_bytes "
                f"({self.segment_bytes}): a full file could not be emptied while the next is "
                "filled; raise it, or lower segment_bytes"
            )
        return self
