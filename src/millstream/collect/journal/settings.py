"""Settings of the journal."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

_MIB = 1024 * 1024


class JournalSettings(BaseModel):
    """What the collector keeps on disk until Kafka has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_bytes: int = Field(
        1024 * _MIB,
        ge=8192,
        description="The journal's files may take so many bytes of disk, per worker; beyond, "
        "senders get a 503. At least twice segment_bytes.",
    )
    segment_bytes: int = Field(
        64 * _MIB,
        ge=4096,
        le=1024 * _MIB,
        description="A new file is begun when the current one has reached so many bytes. A file "
        "is deleted as a whole, when Kafka has everything in it.",
    )
    max_waiting_bytes: int = Field(
        64 * _MIB,
        ge=1,
        description="So many bytes may wait in memory for the disk; beyond, senders get a 503.",
    )
    retry_seconds: float = Field(
        1.0,
        gt=0,
        description="Seconds between two attempts to begin a new file after the disk refused.",
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
