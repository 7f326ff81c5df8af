"""Rates and latencies over the last seconds, with a clock that the test moves."""

from __future__ import annotations

import random

import pytest
from tests.clock import Clock

from millstream.runtime.measure import Latencies, Rate, Skews


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_steady_rate_is_told_as_it_is(clock: Clock) -> None:
    rate = Rate(clock)
    for _ in range(100):
        clock.now += 0.1
        rate.add(7)
    assert rate.per_second() == pytest.approx(70, rel=0.05)
    assert rate.total == 700


def test_a_rate_is_right_already_in_the_second_second(clock: Clock) -> None:
    rate = Rate(clock)
    for _ in range(15):
        clock.now += 0.1
        rate.add()
    assert rate.per_second() == pytest.approx(10, rel=0.1)


def test_one_event_at_the_start_is_not_a_torrent(clock: Clock) -> None:
    rate = Rate(clock)
    clock.now += 0.001
    rate.add()
    assert rate.per_second() == 1


@pytest.mark.parametrize("silence", [6, 7, 60, 86400])
def test_a_rate_falls_to_zero_when_nothing_comes(clock: Clock, silence: float) -> None:
    rate = Rate(clock)
    for _ in range(50):
        clock.now += 0.1
        rate.add()
    clock.now += silence
    assert rate.per_second() == 0
    assert rate.total == 50


def test_quantiles_are_near_the_true_ones(clock: Clock) -> None:
    chance, latencies = random.Random(7), Latencies(clock)
    sample = [chance.lognormvariate(1.5, 1.2) for _ in range(20_000)]
    for milliseconds in sample:
        latencies.record(milliseconds)
    summary = latencies.summary()
    assert summary is not None
    sample.sort()
    assert summary.p50 == pytest.approx(sample[len(sample) // 2], rel=0.05)
    assert summary.p99 == pytest.approx(sample[len(sample) * 99 // 100], rel=0.05)
    assert summary.max == sample[-1]
    assert summary.count == len(sample)


def test_a_batch_counts_as_its_events(clock: Clock) -> None:
    latencies = Latencies(clock)
    latencies.record(1.0, count=90)
    latencies.record(100.0, count=10)
    summary = latencies.summary()
    assert summary is not None
    assert summary.count == 100
    assert summary.p50 == pytest.approx(1.0, rel=0.05)
    assert summary.p99 == pytest.approx(100.0, rel=0.05)


def test_old_latencies_are_forgotten(clock: Clock) -> None:
    latencies = Latencies(clock)
    latencies.record(5000.0)
    clock.now += 9
    latencies.record(2.0)
    both = latencies.summary()
    clock.now += 5
    later = latencies.summary()
    clock.now += 3600
    assert both is not None
    assert both.max == 5000.0
    assert later is not None
    assert (later.count, later.max) == (1, 2.0)
    assert latencies.summary() is None


@pytest.mark.parametrize("milliseconds", [-3.0, 0.0, 1e-9, 0.2, 1e12])
def test_no_latency_is_too_small_or_too_large(clock: Clock, milliseconds: float) -> None:
    latencies = Latencies(clock)
    latencies.record(milliseconds)
    summary = latencies.summary()
    assert summary is not None
    assert summary.count == 1
    assert 0 <= summary.p50 <= summary.p99 <= summary.max


def test_skews_are_told_on_both_sides_of_zero(clock: Clock) -> None:
    skews, chosen = Skews(clock), random.Random(3)
    assert skews.summary() is None
    recorded = [round(chosen.gauss(50, 400)) for _ in range(5000)] + [3 * 86_400_000, -70_000_000]
    for part in range(0, len(recorded), 7):
        skews.record(recorded[part : part + 7])
    recorded.sort()
    told = skews.summary()
    assert told is not None
    assert (told.min, told.max, told.count) == (recorded[0], recorded[-1], 5002)
    assert told.mean == pytest.approx(sum(recorded) / 5002)
    assert told.p50 == pytest.approx(recorded[2500], abs=3)
    assert told.p99 == pytest.approx(recorded[4951], rel=1 / 16)
    clock.now += 10
    assert skews.summary() is None


@pytest.mark.parametrize("skew", [0, 1, -1, 31, 32, -33, 10**15, -(10**15)])
def test_no_skew_is_too_small_or_too_large(clock: Clock, skew: int) -> None:
    skews = Skews(clock)
    skews.record([skew])
    told = skews.summary()
    assert told is not None
    assert told.p50 == told.p99 == told.max == told.min == skew
