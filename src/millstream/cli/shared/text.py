"""Values of events and rows as text for a terminal."""

from __future__ import annotations

import json
import unicodedata
from typing import Any


def shown(value: Any) -> str:
    """A value as one line. Events are strangers' text: nothing in it may steer the terminal."""
    if isinstance(value, str):
        return harmless(value)
    if isinstance(value, dict) and value.keys() == {"start", "end"}:
        return f"{shown(value['start'])} … {shown(value['end'])}"
    return harmless(json.dumps(value, ensure_ascii=False))


def harmless(text: str) -> str:
    """The text with control characters written out: `\\x1b` for an escape."""
    return "".join(
        character
        if unicodedata.category(character) not in ("Cc", "Cf")
        else character.encode("unicode_escape").decode()
        for character in text
    )


def harmless_lines(value: bytes) -> str:
    """Bytes for a terminal, with their own line breaks."""
    return "\n".join(map(harmless, value.decode("utf-8", "backslashreplace").split("\n")))


def moment(milliseconds: int) -> str:
    """A time of the epoch, for people."""
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"


def fields(row: dict[str, Any]) -> str:
    """`city=Cologne n=3`."""
    return "  ".join(f"{name}={shown(value)}" for name, value in row.items())
