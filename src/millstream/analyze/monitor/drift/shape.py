"""How the values of one field are spread, and how far two spreads are apart.

The measure is the population stability index over bins: the tenths of the reference for numbers,
its most frequent values for words, and in both cases one bin for what is missing. 0 is the same
shape; from 0.2 on, people who watch models speak of a shift.
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
STEADY = 0.1  # below which a field that had shifted has come to rest
_TENTHS = 10
_WORDS = 20  # told apart; all others share a bin
_DEVIATIONS = 4.0


def distance(kind: Kind, reference: Sequence[Value], sample: Sequence[Value]) -> float:
    """How far the sample's shape is from the reference's, less what chance alone explains."""
    bins = _tenths(reference) if kind == "numbers" else _words(reference)
    expected, seen = bins.count(reference), bins.count(sample)
    size = len(expected)
    index = 0.0
    for before, now in zip(expected, seen, strict=True):
        # Half a count more in each bin: one that is empty is rare, not impossible.
        share = (before + 0.5) / (len(reference) + size / 2)
        other = (now + 0.5) / (len(sample) + size / 2)
        index += (other - share) * math.log(other / share)
    # With no shift the index follows a chi-square of `size - 1` degrees, scaled by the samples.
    freedom = size - 1
    chance = freedom + _DEVIATIONS * math.sqrt(2 * freedom)
    noise = chance * (1 / len(reference) + 1 / len(sample))
    return index if index > noise else 0.0


def names_things(kind: Kind, values: Sequence[Value]) -> bool:
    """Whether nearly every value is another one: an identifier or a counter, without a shape."""
    present = [value for value in values if value is not None]
    if kind == "numbers" and not all(float(value).is_integer() for value in present):
        return False
    return len(set(present)) > 0.9 * len(present)


def describe(kind: Kind, values: Sequence[Value]) -> str:
    """The shape in words: `median 12 (3 to 40)`, or `Bern 40 %, Basel 12 %`."""
    present = [value for value in values if value is not None]
    missing = len(values) - len(present)
    parts = []
    if kind == "numbers" and present:
        numbers = sorted(float(value) for value in present)
        low, middle, high = (_at(numbers, share) for share in (0.1, 0.5, 0.9))
        parts.append(f"median {middle:.4g} ({low:.4g} to {high:.4g})")
    elif present:
        frequent = Counter(present).most_common(3)
        parts += [f"{_harmless(word)} {count / len(values):.0%}" for word, count in frequent]
    if missing:
        parts.append(f"missing {missing / len(values):.0%}")
    return ", ".join(parts)


class _tenths:
    """Bins with a tenth of the reference each; equal values are never in two."""

    def __init__(self, reference: Sequence[Value]) -> None:
        numbers = sorted(float(value) for value in reference if value is not None)
        edges = {_at(numbers, part / _TENTHS) for part in range(1, _TENTHS)} if numbers else set()
        self._edges = sorted(edges)

    def count(self, values: Iterable[Value]) -> list[int]:
        counts = [0] * (2 * len(self._edges) + 2)
        for value in values:
            if value is None:
                counts[-1] += 1
                continue
            # An edge has a bin of its own: a field may have few values, each of them often.
            number = float(value)
            at = bisect_right(self._edges, number)
            is_edge = at > 0 and self._edges[at - 1] == number
            counts[2 * at - 1 if is_edge else 2 * at] += 1
        return counts


class _words:
    """A bin for each frequent word of the reference, and one for the others."""

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


def _harmless(word: object) -> str:
    """Strangers' text, in which nothing may steer a terminal."""
    text = str(word)
    return text if text.isprintable() else ascii(text)


def _at(numbers: Sequence[float], share: float) -> float:
    return numbers[min(int(len(numbers) * share), len(numbers) - 1)]
