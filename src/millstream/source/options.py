"""Options of sources as Python and SQL write them: SQL has only texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

from millstream.duration import parse_duration


def pairs(written: str | Mapping[str, str], separator: str) -> dict[str, str]:
    """Names with values; a text has one pair a line, as in `Authorization: Bearer …`."""
    if not isinstance(written, str):
        return dict(written)
    lines = [line for line in written.splitlines() if line.strip()]
    return {
        name.strip(): value.strip()
        for name, _, value in (line.partition(separator) for line in lines)
    }


def words(written: str | Iterable[str]) -> tuple[str, ...]:
    """Several names; a text has commas between them."""
    if not isinstance(written, str):
        return tuple(written)
    return tuple(word.strip() for word in written.split(",") if word.strip())


def duration_problem(option: str, written: object) -> str | None:
    """What is wrong with a duration that may be empty."""
    if written == "":
        return None
    try:
        if isinstance(written, str) and parse_duration(written) > timedelta():
            return None
    except ValueError:
        pass
    return f"has a source with {option}={written!r}, which is not a duration as '30 seconds' is"


def seconds(written: str) -> float | None:
    """A duration in seconds; None if it is empty."""
    return parse_duration(written).total_seconds() if written else None


def number_problem(option: str, written: object, *, least: int = 1) -> str | None:
    """What is wrong with a number that may have come as text."""
    if isinstance(written, int) and not isinstance(written, bool) and written >= least:
        return None
    return f"has a source with {option}={written!r}, which is not a number from {least} on"


def number(written: int | str) -> int | str:
    """The number that a text writes; as it came if it writes none, for `number_problem` to tell."""
    return int(written) if isinstance(written, str) and written.isdecimal() else written
