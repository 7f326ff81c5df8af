"""What a compiled filter calls: SQL's operators and functions over values as JSON holds them.

All are total: NULL in, NULL out; what cannot be computed is NULL. A filter must not fail on a row.
Timestamps are text of one width in UTC, so their order is the text's order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal, DecimalException
from functools import lru_cache
from typing import Any

Number = int | float | Decimal


def timestamp(value: object) -> str | None:
    """RFC 3339 text, or an epoch in seconds or (from 10^11 on) milliseconds, as we write it."""
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value.strip())
        elif isinstance(value, int | float) and not isinstance(value, bool):
            seconds = value / 1000 if abs(value) >= 10**11 else value
            moment = datetime.fromtimestamp(seconds, UTC)
        else:
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        moment = moment.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")


def number(value: object) -> Number | None:
    """A number as a row holds it; Spark writes those that JSON lacks (NaN, Infinity) as text."""
    if isinstance(value, int | float | Decimal):
        return value
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None


def nested(value: object, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def arithmetic(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def apply(a: Number | None, b: Number | None) -> Number | None:
        if a is None or b is None:
            return None
        try:
            if isinstance(a, float) != isinstance(b, float):
                a, b = float(a), float(b)
            result: Number | None = operation(a, b)
        except (ArithmeticError, ValueError, DecimalException):
            return None
        return result

    return apply


add = arithmetic(lambda a, b: a + b)
subtract = arithmetic(lambda a, b: a - b)
multiply = arithmetic(lambda a, b: a * b)


@arithmetic
def divide(a: Any, b: Any) -> Any:
    a, b = float(a), float(b)
    if b == 0:
        return (
            math.nan
            if a == 0 or math.isnan(a)
            else math.copysign(math.inf, a) * math.copysign(1, b)
        )
    return a / b


@arithmetic
def modulo(a: Any, b: Any) -> Any:
    if isinstance(a, float):
        return math.fmod(a, b) if b else math.nan
    result = abs(a) % abs(b)
    return -result if a < 0 else result  # SQL's remainder has the sign of the dividend


def compare(a: Number, b: Number) -> int:
    """Below, at or above zero, as SQL orders numbers: NaN equals itself and is above all others."""
    if a != a or b != b:
        return (a != a) - (b != b)
    return (a > b) - (a < b)


def same(a: Any, b: Any) -> bool:
    """SQL's IS NOT DISTINCT FROM."""
    return bool(a == b or (a is not None and b is not None and a != a and b != b))


def negate(value: Any) -> Any:
    return None if value is None else -value


def absolute(value: Any) -> Any:
    return None if value is None else abs(value)


def lower(value: str | None) -> str | None:
    return None if value is None else value.lower()


def upper(value: str | None) -> str | None:
    return None if value is None else value.upper()


def length(value: Any) -> int | None:
    return None if value is None else len(value)


def trim(value: str | None) -> str | None:
    return None if value is None else value.strip(" ")


def concat(a: str | None, b: str | None) -> str | None:
    return None if a is None or b is None else a + b


def contains(value: Any, part: Any) -> bool | None:
    return None if value is None or part is None else part in value


def starts_with(value: str | None, part: str | None) -> bool | None:
    return None if value is None or part is None else value.startswith(part)


def ends_with(value: str | None, part: str | None) -> bool | None:
    return None if value is None or part is None else value.endswith(part)


def like(value: str | None, pattern: str | None, escape: str | None = None) -> bool | None:
    """LIKE in linear time for each part of the pattern, so that no pattern can stall us."""
    if value is None or pattern is None:
        return None
    pieces = _pieces(pattern, escape)
    first, rest = pieces[0], pieces[1:]
    if not rest:
        return len(value) == len(first) and _fits(value, 0, first)
    if not _fits(value, 0, first):
        return False
    at = len(first)
    for piece in rest[:-1]:
        at = _find(value, at, piece)
        if at < 0:
            return False
        at += len(piece)
    last = rest[-1]
    return len(value) - len(last) >= at and _fits(value, len(value) - len(last), last)


def ilike(value: str | None, pattern: str | None, escape: str | None = None) -> bool | None:
    if value is None or pattern is None:
        return None
    return like(value.lower(), pattern.lower(), escape)


@lru_cache(1024)
def _pieces(pattern: str, escape: str | None) -> tuple[tuple[str | None, ...], ...]:
    """What stands between the %: characters, None for any one."""
    pieces: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            pieces[-1].append(next(characters, escape))
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if character == "_" else character)
    return tuple(tuple(piece) for piece in pieces)


def _fits(value: str, at: int, piece: tuple[str | None, ...]) -> bool:
    return len(value) - at >= len(piece) and all(
        wanted is None or value[at + i] == wanted for i, wanted in enumerate(piece)
    )


def _find(value: str, start: int, piece: tuple[str | None, ...]) -> int:
    if None not in piece:
        return value.find("".join(c for c in piece if c is not None), start)
    return next(
        (at for at in range(start, len(value) - len(piece) + 1) if _fits(value, at, piece)), -1
    )
