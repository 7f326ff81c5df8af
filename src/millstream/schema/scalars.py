"""Parses values that JSON has no type for: timestamps and decimals."""

from __future__ import annotations

import functools
import re
from datetime import MAXYEAR, MINYEAR, UTC, datetime
from decimal import ROUND_HALF_UP, Context, Decimal, localcontext
from typing import ClassVar

# The years 1 to 9999, in milliseconds; an absolute value below 10^11 means seconds.
EARLIEST, LATEST = -62_135_596_800_000, 253_402_300_799_999
MILLISECONDS_FROM = 10**11
# The part of RFC 3339 that Spark reads: capital letters, at most nanoseconds, offsets to 18 hours.
_RFC_3339 = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,9})?"
    r"(?:Z|[+-](?:(?:0\d|1[0-7]):[0-5]\d|18:00))",
    re.ASCII,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)


class Timestamp:
    """RFC 3339 text, or whole milliseconds (from 10^11 on) or seconds since 1970."""

    @staticmethod
    def check(value: object) -> Timestamp:
        """An instance, because msgspec needs one; ValueError if the value is not valid."""
        _read(value)
        return _TIMESTAMP


class EventTime:
    """A timestamp as milliseconds since 1970."""

    __slots__ = ("milliseconds",)

    def __init__(self, milliseconds: int) -> None:
        self.milliseconds = milliseconds  # truncated

    @staticmethod
    def check(value: object) -> EventTime:
        """The time of a value; ValueError if it is no timestamp."""
        moment = _read(value)
        if isinstance(moment, int):
            return EventTime(moment if abs(moment) >= MILLISECONDS_FROM else moment * 1000)
        since = moment - _EPOCH
        return EventTime(
            since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000
        )


def _read(value: object) -> int | datetime:
    if type(value) is int:
        if EARLIEST <= value * (1 if abs(value) >= MILLISECONDS_FROM else 1000) <= LATEST:
            return value
    elif type(value) is str and _RFC_3339.fullmatch(value):
        time = datetime.fromisoformat(value)
        if time.year in (MINYEAR, MAXYEAR):
            _check_year(time)
        return time
    raise ValueError("not a timestamp")


def _check_year(time: datetime) -> None:
    """ValueError if the time is outside the years 1 to 9999 in UTC."""
    try:
        time.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("not a timestamp") from error


_TIMESTAMP = Timestamp()


class Decimals:
    """A number, or its text, that fits a decimal of some precision and scale."""

    precision: ClassVar[int]
    scale: ClassVar[int]

    @staticmethod
    @functools.cache
    def of(precision: int, scale: int) -> type[Decimals]:
        """The class for decimal(precision, scale)."""
        return type("Decimal", (Decimals,), {"precision": precision, "scale": scale})

    @classmethod
    def check(cls, value: object) -> Decimals:
        """An instance if the value fits, else ValueError; Spark rounds digits beyond the scale."""
        if type(value) is int or type(value) is float:
            number = Decimal(repr(value))
        elif type(value) is str and _NUMBER.fullmatch(value):
            number = Decimal(value)
        else:
            raise ValueError("not a decimal")
        whole = cls.precision - cls.scale
        if not number.is_finite():  # Python parses 1e999 as infinity
            raise ValueError("out of range")
        if number and not (
            number.adjusted() < whole and _rounded(number, cls.scale).adjusted() < whole
        ):
            raise ValueError("out of range")
        return cls()


def _rounded(number: Decimal, scale: int) -> Decimal:
    with localcontext(Context(prec=1100)):
        return number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
