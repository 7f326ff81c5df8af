"""Settings of the access tier."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ServeSettings(BaseModel):
    """Where clients get answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", description="The address to listen on.")
    port: int = Field(8500, ge=0, le=65535, description="The port to listen on; 0: any free one.")
