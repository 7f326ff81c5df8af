"""Logging to standard error: lines for people, or JSON for machines."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import msgspec
from pydantic import BaseModel, ConfigDict, Field

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_NOISY = ("py4j", "httpx", "websockets")
# The attributes of every record; the others were passed as `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class OutputSettings(BaseModel):
    """What the tiers write about themselves, into `logs/` or to standard error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["text", "json"] = Field(
        "text", description="Lines for people, or one JSON object a line for machines."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The least important kind of line that is written."
    )


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, logger, tier, message, the error, and `extra`."""

    def __init__(self, tier: str) -> None:
        super().__init__()
        self._tier = tier

    def format(self, record: logging.LogRecord) -> str:
        content: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "tier": self._tier,
            "logger": record.name,
            "message": record.getMessage(),
        }
        content |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            content["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(content, enc_hook=str).decode()


def write_logs(settings: OutputSettings, tier: str, stream: TextIO = sys.stderr) -> None:
    """Send all logging of this process to `stream`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines(tier) if settings.format == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(handlers=[handler], level=settings.level.upper())
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel(logging.WARNING)
