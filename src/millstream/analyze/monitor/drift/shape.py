"""The distribution of one field's values, and the distance between two distributions.

The distance is the population stability index over bins: deciles of the reference for numbers, its
most frequent values for words, and in both cases one bin for missing values. 0 means equal. Values
from 0.2 on are commonly called a shift.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

Kind = Literal["numbers", "words"]
Value = float | str | None  # None: the event has no such field

SHIFTED = 0.2
STEADY = 0.1  # below this, a field that had shifted has settled
_DECILES = 10
_WORDS = 20  # with a bin each; all others share one
_DEVIATIONS = 4.0


def distance(kind: Kind, reference: Sequence[Value], sample: Sequence[Value]) -> float:
    """The distance of the sample from the reference; 0 if chance alone explains it."""
    bins = _Deciles(reference) if kind == "numbers" else _Words(reference)
    expected, seen = bins.count(reference), bins.count(sample)
    size = len(expected)
    index = 0.0
    for before, now in zip(expected, seen, strict=True):
        # Half a count more in each bin: a value in an empty bin is rare, not impossible.
        share = (before + 0.5) / (len(reference) + size / 2)
        other = (now + 0.5) / (len(sample) + size / 2)
        index += (other - share) * math.log(other / share)
    # With no shift the index follows a chi-square of `size - 1` degrees, scaled by the samples.
    freedom = size - 1
    chance = freedom + _DEVIATIONS * math.sqrt(2 * freedom)
    noise = chance * (1 / len(reference) + 1 / len(sample))
    return index if index > noise else 0.0


def is_identifier(kind: Kind, values: Sequence[Value]) -> bool:
    """Whether nearly all values are distinct, as of an id or a counter: no distribution."""
    present = [value for value in values if value is not None]
    if kind == "numbers" and not all(float(value).is_integer() for value in present):
        return False
    return len(set(present)) > 0.9 * len(present)


def describe(kind: Kind, values: Sequence[Value]) -> str:
    """The distribution in words: `median 12 (3 to 40)`, or `Bern 40 %, Basel 12 %`."""
    present = [value for value in values if value is not None]
    missing = len(values) - len(present)
    parts = []
    if kind == "numbers" and present:
        numbers = sorted(float(value) for value in present)
        low, middle, high = (_at(numbers, share) for share in (0.1, 0.5, 0.9))
        parts.append(f"median {middle:.4g} ({low:.4g} to {high:.4g})")
    elif present:
        frequent = Counter(present).most_common(3)
        parts += [f"{_printable(word)} {count / len(values):.0%}" for word, count in frequent]
    if missing:
        parts.append(f"missing {missing / len(values):.0%}")
    return ", ".join(parts)


class _Deciles:
    """Bins with a tenth of the reference each; equal values are in one bin."""

    def __init__(self, reference: Sequence[Value]) -> None:
        numbers = sorted(float(value) for value in reference if value is not None)
        edges = {_at(numbers, part / _DECILES) for part in range(1, _DECILES)} if numbers else set()
        self._edges = sorted(edges)

    def count(self, values: Iterable[Value]) -> list[int]:
        counts = [0] * (2 * len(self._edges) + 2)
        for value in values:
            if value is None:
                counts[-1] += 1
                continue
            # An edge has its own bin: a field may have few distinct values, each of them often.
            number = float(value)
            at = bisect_right(self._edges, number)
            is_edge = at > 0 and self._edges[at - 1] == number
            counts[2 * at - 1 if is_edge else 2 * at] += 1
        return counts


class _Words:
    """A bin for each frequent word of the reference, and one for all others."""

    def __init__(self, reference: Sequence[Value]) -> None:
        frequent = Counter(value for value in reference if value is not None)
        self._bins = {word: at for at, (word, _) in enumerate(frequent.most_common(_WORDS))}

    def count(self, values: Iterable[Value]) -> list[int]:
        counts = [0] * (len(self._bins) + 2)
        for value in values:
            if value is None:
                counts[-1] += 1
            else:
                counts[self._bins.get(value, len(self._bins))] += 1
        return counts


def _printable(word: object) -> str:
    """The word without control characters: it comes from outside, and a terminal may show it."""
    text = str(word)
    return text if text.isprintable() else ascii(text)


def _at(numbers: Sequence[float], share: float) -> float:
    return numbers[min(int(len(numbers) * share), len(numbers) - 1)]
