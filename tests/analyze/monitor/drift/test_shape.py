"""The distance of two distributions: 0 for equal ones, large for different ones."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from millstream.analyze.monitor.drift.shape import (
    SHIFTED,
    Kind,
    Value,
    describe,
    distance,
    is_identifier,
)

Draw = Callable[[random.Random], Value]


def of(draw: Draw, count: int, seed: int) -> list[Value]:
    chance = random.Random(seed)
    return [draw(chance) for _ in range(count)]


SHAPES: dict[str, tuple[Kind, Draw]] = {
    "normal": ("numbers", lambda r: r.gauss(20, 5)),
    "skewed": ("numbers", lambda r: r.lognormvariate(2, 1)),
    "few numbers": ("numbers", lambda r: r.choice([1, 1, 1, 2, 5])),
    "one number": ("numbers", lambda r: 7),
    "words": ("words", lambda r: r.choice(["yes", "yes", "no"])),
    "many words": ("words", lambda r: f"w{int(r.expovariate(0.05))}"),
    "often missing": ("numbers", lambda r: None if r.random() < 0.3 else r.random()),
    "never there": ("words", lambda r: None),
}


@pytest.mark.parametrize("name", SHAPES)
def test_chance_alone_is_no_shift(name: str) -> None:
    kind, draw = SHAPES[name]
    for seed in range(40):
        reference, sample = of(draw, 4000, seed), of(draw, 500, seed + 1000)
        assert distance(kind, reference, sample) < SHIFTED


CHANGES: dict[str, tuple[Kind, Draw, Draw]] = {
    "a higher mean": ("numbers", lambda r: r.gauss(20, 5), lambda r: r.gauss(25, 5)),
    "a wider spread": ("numbers", lambda r: r.gauss(20, 5), lambda r: r.gauss(20, 12)),
    "one number more often": (
        *("numbers", lambda r: r.choice([1, 1, 1, 2]), lambda r: r.choice([1, 2, 2, 2])),
    ),
    "another unit": ("numbers", lambda r: r.random() * 100, lambda r: r.random() * 62),
    "a new word": ("words", lambda r: r.choice("ab"), lambda r: r.choice("abc")),
    "a word that is gone": ("words", lambda r: r.choice("abcd"), lambda r: r.choice("abc")),
    "a field that is left out": (
        *("numbers", lambda r: r.random(), lambda r: None if r.random() < 0.3 else r.random()),
    ),
    "a constant that moved": ("numbers", lambda r: 7, lambda r: 8),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_distribution_is_a_shift(name: str) -> None:
    kind, before, now = CHANGES[name]
    for seed in range(20):
        reference, sample = of(before, 1000, seed), of(now, 500, seed + 1000)
        assert distance(kind, reference, sample) >= SHIFTED


def test_identifiers_have_no_distribution() -> None:
    assert is_identifier("numbers", [float(n) for n in range(1000)])
    assert is_identifier("words", [f"order-{n}" for n in range(1000)])
    assert not is_identifier("numbers", of(lambda r: r.random(), 1000, 1))
    assert not is_identifier("words", of(lambda r: r.choice("abc"), 1000, 1))


def test_a_distribution_is_described_in_words() -> None:
    assert describe("numbers", [float(n) for n in range(100)]) == "median 50 (10 to 90)"
    assert describe("words", ["a"] * 3 + ["b"] + [None] * 4) == "a 38%, b 12%, missing 50%"
