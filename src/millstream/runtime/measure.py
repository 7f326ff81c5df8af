"""Rates and latencies of a process over the last seconds, in bounded memory.

Every measure has a ring of slots of one second each. The oldest slot is emptied when a new second
begins. So recording takes about half a microsecond, and memory does not grow with the traffic.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import frexp

from millstream.values.report import Latency

Clock = Callable[[], float]  # seconds, never going backwards

_RATE_SECONDS = 5
_LATENCY_SECONDS = 10

# A latency's bucket is its power of two and the sixteenth within it. So the error of a quantile is
# at most 1/32, from 2⁻¹¹ ms (half a microsecond) up to 2²¹ ms (half an hour).
_PARTS = 16
_LOWEST_EXPONENT = -10
_BUCKETS = 32 * _PARTS
_FIRST = (_LOWEST_EXPONENT + 1) * _PARTS
_SMALLEST = 2.0 ** (_LOWEST_EXPONENT - 1)


class Rate:
    """Events per second over the last five seconds."""

    __slots__ = ("_clock", "_counts", "_second", "_started", "total")

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.total = 0  # since the start
        self._clock = clock
        self._started = clock()
        self._second = int(self._started)
        self._counts = [0] * (_RATE_SECONDS + 1)  # full seconds, and the current one

    def add(self, count: int = 1) -> None:
        """Count `count` more, now."""
        second = int(self._clock())
        if second != self._second:
            self._advance(second)
        self._counts[second % len(self._counts)] += count
        self.total += count

    def per_second(self) -> float:
        """The mean over the last seconds, or since the start if that was later."""
        now = self._clock()
        second = int(now)
        if second != self._second:
            self._advance(second)
        # In less than a second, a single event would look like a high rate.
        seconds = max(1.0, min(now - self._started, now - second + _RATE_SECONDS))
        return sum(self._counts) / seconds

    def _advance(self, second: int) -> None:
        slots = len(self._counts)
        for passed in range(max(self._second + 1, second - slots + 1), second + 1):
            self._counts[passed % slots] = 0
        self._second = second


class Latencies:
    """The distribution of latencies over the last ten seconds."""

    __slots__ = ("_buckets", "_clock", "_highest", "_lowest", "_second", "_sums")

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._second = int(clock())
        self._buckets = [[0] * _BUCKETS for _ in range(_LATENCY_SECONDS)]
        self._highest = [0.0] * _LATENCY_SECONDS
        self._lowest = [math.inf] * _LATENCY_SECONDS
        self._sums = [0.0] * _LATENCY_SECONDS

    def record(self, milliseconds: float, count: int = 1) -> None:
        """Add a latency of `count` events; below zero (clocks differ) counts as zero."""
        second = int(self._clock())
        if second != self._second:
            self._advance(second)
        slot = second % _LATENCY_SECONDS
        bucket = 0
        if milliseconds > _SMALLEST:
            fraction, exponent = frexp(milliseconds)  # 0.5 ≤ fraction < 1
            bucket = exponent * _PARTS + int(fraction * 2 * _PARTS) - _FIRST
        self._buckets[slot][bucket if bucket < _BUCKETS else _BUCKETS - 1] += count
        self._sums[slot] += milliseconds * count
        if milliseconds < self._lowest[slot]:
            self._lowest[slot] = milliseconds
        if milliseconds > self._highest[slot]:
            self._highest[slot] = milliseconds

    def summary(self) -> Latency | None:
        """The quantiles of what was recorded lately; None if nothing was."""
        second = int(self._clock())
        if second != self._second:
            self._advance(second)
        counts = [sum(column) for column in zip(*self._buckets, strict=True)]
        total = sum(counts)
        if total == 0:
            return None
        highest = max(self._highest)
        return Latency(
            p50=min(_quantile(counts, total, 0.50), highest),
            p99=min(_quantile(counts, total, 0.99), highest),
            max=highest,
            count=total,
            min=max(min(self._lowest), 0.0),
            mean=max(sum(self._sums) / total, 0.0),
        )

    def _advance(self, second: int) -> None:
        first = max(self._second + 1, second - _LATENCY_SECONDS + 1)
        for passed in range(first, second + 1):
            self._buckets[passed % _LATENCY_SECONDS] = [0] * _BUCKETS
            self._highest[passed % _LATENCY_SECONDS] = 0.0
            self._lowest[passed % _LATENCY_SECONDS] = math.inf
            self._sums[passed % _LATENCY_SECONDS] = 0.0
        self._second = second


class Skews:
    """The distribution of whole milliseconds, also below zero, over the last ten seconds."""

    __slots__ = ("_clock", "_counts", "_highest", "_lowest", "_second", "_sums")

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._second = int(clock())
        # By bucket, see `_skew_bucket`: only few are in use.
        self._counts: list[dict[int, int]] = [{} for _ in range(_LATENCY_SECONDS)]
        self._highest = [-math.inf] * _LATENCY_SECONDS
        self._lowest = [math.inf] * _LATENCY_SECONDS
        self._sums = [0] * _LATENCY_SECONDS

    def record(self, skews: Sequence[int]) -> None:
        """Add one for each event."""
        if not skews:
            return
        second = int(self._clock())
        if second != self._second:
            self._advance(second)
        slot = second % _LATENCY_SECONDS
        counts = self._counts[slot]
        for skew in skews:
            bucket = _skew_bucket(skew)
            counts[bucket] = counts.get(bucket, 0) + 1
        self._sums[slot] += sum(skews)
        self._highest[slot] = max(self._highest[slot], *skews)
        self._lowest[slot] = min(self._lowest[slot], *skews)

    def summary(self) -> Latency | None:
        """The quantiles of what was recorded lately; None if nothing was."""
        second = int(self._clock())
        if second != self._second:
            self._advance(second)
        counts: Counter[int] = Counter()
        for each in self._counts:
            counts.update(each)
        total = counts.total()
        if total == 0:
            return None
        lowest, highest = min(self._lowest), max(self._highest)
        p50, p99 = (
            min(max(_skew_quantile(counts, total, share), lowest), highest) for share in (0.5, 0.99)
        )
        mean = sum(self._sums) / total
        return Latency(p50=p50, p99=p99, max=highest, count=total, min=lowest, mean=mean)

    def _advance(self, second: int) -> None:
        first = max(self._second + 1, second - _LATENCY_SECONDS + 1)
        for passed in range(first, second + 1):
            slot = passed % _LATENCY_SECONDS
            self._counts[slot], self._sums[slot] = {}, 0
            self._highest[slot], self._lowest[slot] = -math.inf, math.inf
        self._second = second


def _skew_bucket(skew: int) -> int:
    """The highest five bits, and above them the number of bits cut off; ordered like the skews."""
    if skew < 0:
        return -_skew_bucket(-skew)
    if skew < 32:
        return skew
    cut = skew.bit_length() - 5
    return cut << 5 | skew >> cut


def _skew_quantile(counts: Mapping[int, int], total: int, share: float) -> float:
    rank, seen, bucket = math.ceil(share * total), 0, 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= rank:
            break
    cut = abs(bucket) >> 5
    return math.copysign((abs(bucket) & 31) + (0.5 if cut else 0), bucket) * (1 << cut)


def _middle(bucket: int) -> float:
    exponent, part = divmod(bucket, _PARTS)
    return math.ldexp(0.5 + (part + 0.5) / (2 * _PARTS), exponent + _LOWEST_EXPONENT)


def _quantile(counts: list[int], total: int, share: float) -> float:
    rank, seen = math.ceil(share * total), 0
    for bucket, count in enumerate(counts):
        seen += count
        if seen >= rank:
            return _middle(bucket)
    return _middle(_BUCKETS - 1)
