"""SQL's operators and functions over JSON values, called by compiled expressions.

They never fail: NULL in, NULL out; a value that cannot be computed is NULL. Timestamps are text of
one width in UTC, so they sort as text.

Functions whose time depends on the length of a text get `work` first. It limits how much text one
evaluation may handle, because evaluation runs in the event loop, where every client waits for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Context, Decimal, DecimalException
from typing import Any

from millstream.expression.like import Pattern, parse_pattern

Number = int | float | Decimal
MAX_BITS = 256  # of an integer; more than any column type has
MAX_WORK = 1 << 20  # characters in one evaluation
_EXACT = Context(prec=100)  # Python's default has 28 digits, fewer than a column's 38


class TooMuchWork(Exception):
    """One evaluation would handle more text than it may."""


class Work:
    """The amount of text that an evaluation may still handle."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_WORK

    def spend(self, characters: int) -> None:
        self.left -= characters
        if self.left < 0:
            raise TooMuchWork


def timestamp(value: object) -> str | None:
    """Canonical text of RFC 3339 text or of an epoch in seconds or (from 10^11 on) milliseconds."""
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
    """A number in a row; Spark writes NaN and Infinity, which JSON lacks, as text."""
    if isinstance(value, int | float | Decimal):
        return value
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None


def double(value: object) -> float | None:
    """A number of a float column; rows with decimal columns hold it as a decimal."""
    found = number(value)
    return None if found is None else _as_float(found)


def _as_float(value: Number) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def nested(value: object, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def arithmetic(
    operation: Callable[[Any, Any], Any], exact: Callable[[Any, Any], Any] | None = None
) -> Callable[[Any, Any], Any]:
    """An operator on numbers; `exact` is its version for decimals."""

    def apply(a: Number | None, b: Number | None) -> Number | None:
        if a is None or b is None:
            return None
        try:
            if isinstance(a, float) != isinstance(b, float):
                a, b = float(a), float(b)
            is_decimal = isinstance(a, Decimal) or isinstance(b, Decimal)
            result: Number | None = (exact if exact and is_decimal else operation)(a, b)
        except (ArithmeticError, ValueError, DecimalException):
            return None
        if isinstance(result, int) and result.bit_length() > MAX_BITS:
            return None
        return result

    return apply


add = arithmetic(lambda a, b: a + b, _EXACT.add)
subtract = arithmetic(lambda a, b: a - b, _EXACT.subtract)
multiply = arithmetic(lambda a, b: a * b, _EXACT.multiply)


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


def _remainder(a: Any, b: Any) -> Any:
    if isinstance(a, float):
        return math.fmod(a, b) if b else math.nan
    result = abs(a) % abs(b)
    return -result if a < 0 else result  # SQL's remainder has the sign of the dividend


modulo = arithmetic(_remainder, _EXACT.remainder)


def compare(a: Number, b: Number) -> int:
    """Below, at or above zero, as SQL orders numbers: NaN equals itself and is above all others.

    A number is compared with a float as a float: no float is exactly 0.1.
    """
    if isinstance(a, float) != isinstance(b, float):
        a, b = _as_float(a), _as_float(b)
    if a != a or b != b:
        return (a != a) - (b != b)
    return (a > b) - (a < b)


def same(a: Any, b: Any) -> bool:
    """SQL's IS NOT DISTINCT FROM."""
    if type(a) is not type(b) and a is not None and b is not None:
        return compare(a, b) == 0  # only numbers have several types
    return bool(a == b or (a is not None and b is not None and a != a and b != b))


def negate(value: Any) -> Any:
    return value.copy_negate() if isinstance(value, Decimal) else None if value is None else -value


def absolute(value: Any) -> Any:
    return value.copy_abs() if isinstance(value, Decimal) else None if value is None else abs(value)


def lower(work: Work, value: str | None) -> str | None:
    if value is None:
        return None
    work.spend(_case_work(value))
    return value.lower()


def upper(work: Work, value: str | None) -> str | None:
    if value is None:
        return None
    work.spend(_case_work(value))
    return value.upper()


def _case_work(value: str) -> int:
    return len(value) if value.isascii() else 8 * len(value)


def length(value: Any) -> int | None:
    return None if value is None else len(value)


def trim(work: Work, value: str | None) -> str | None:
    if value is None:
        return None
    work.spend(len(value))
    return value.strip(" ")


def concat(work: Work, a: str | None, b: str | None) -> str | None:
    if a is None or b is None:
        return None
    work.spend(len(a) + len(b))
    return a + b


def contains(work: Work, value: Any, part: Any) -> bool | None:
    if value is None or part is None:
        return None
    work.spend(len(value))
    return part in value


def contains_number(work: Work, values: Any, wanted: Number | None) -> bool | None:
    """Whether a list contains the number, as SQL compares numbers."""
    if values is None or wanted is None:
        return None
    work.spend(8 * len(values))
    held = (number(value) for value in values)
    return any(value is not None and compare(value, wanted) == 0 for value in held)


def starts_with(work: Work, value: str | None, part: str | None) -> bool | None:
    if value is None or part is None:
        return None
    work.spend(len(part))
    return value.startswith(part)


def ends_with(work: Work, value: str | None, part: str | None) -> bool | None:
    if value is None or part is None:
        return None
    work.spend(len(part))
    return value.endswith(part)


def like(
    work: Work, value: str | None, pattern: str | Pattern | None, escape: str | None = None
) -> bool | None:
    """LIKE; a pattern from a row is parsed each time. NULL if it is too long."""
    if value is None or pattern is None:
        return None
    if isinstance(pattern, str):
        work.spend(len(pattern))
        read = parse_pattern(pattern, escape)
        if read is None:
            return None
    else:
        read = pattern
    work.spend(len(value) * read.weight)
    return read.matches(value)


def ilike(
    work: Work, value: str | None, pattern: str | Pattern | None, escape: str | None = None
) -> bool | None:
    if value is None or pattern is None:
        return None
    return like(
        work,
        lower(work, value),
        lower(work, pattern) if isinstance(pattern, str) else pattern,
        escape,
    )
