"""Values of events and rows as text for a terminal."""

from __future__ import annotations

import json
import unicodedata
from typing import Any


def value_text(value: Any) -> str:
    """A value as one line. Events are untrusted: they must not control the terminal."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict) and value.keys() == {"start", "end"}:
        return f"{value_text(value['start'])} … {value_text(value['end'])}"
    return printable(json.dumps(value, ensure_ascii=False))


def printable(text: str) -> str:
    """The text with control characters escaped: `\\x1b` for an escape."""
    return "".join(
        character
        if unicodedata.category(character) not in ("Cc", "Cf")
        else character.encode("unicode_escape").decode()
        for character in text
    )


def printable_lines(value: bytes) -> str:
    """Bytes as text for a terminal, with their line breaks."""
    return "\n".join(map(printable, value.decode("utf-8", "backslashreplace").split("\n")))


def format_row(row: dict[str, Any]) -> str:
    """`city=Cologne n=3`."""
    return "  ".join(f"{name}={value_text(value)}" for name, value in row.items())
