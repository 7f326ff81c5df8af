"""A drift is reported once, and until it is over."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.analyze.monitor.drift.detector import REFERENCE, SAMPLE, DriftDetector
from millstream.pipeline.app import App


@pytest.fixture
def detector() -> DriftDetector:
    app = App("drifting")
    app.stream(
        "readings", schema="id LONG, site STRING, level DOUBLE, ok BOOLEAN, at TIMESTAMP", key="id"
    )
    return DriftDetector(app.streams["readings"])


def readings(count: int, mean: float = 10.0, sites: str = "abc", seed: int = 1) -> Iterator[bytes]:
    chance = random.Random(seed)
    for number in range(count):
        event: dict[str, Any] = {
            "id": number,
            "site": chance.choice(sites),
            "level": chance.gauss(mean, 2),
            "ok": chance.random() < 0.9,
        }
        yield json.dumps(event).encode()


def test_a_steady_stream_has_no_drift(detector: DriftDetector) -> None:
    for round_ in range(30):
        assert detector.observe(readings(SAMPLE, seed=round_), now=round_) == []
    assert detector.shifted() == []


def test_a_shift_is_reported_once_with_both_distributions(detector: DriftDetector) -> None:
    detector.observe(readings(3 * SAMPLE), now=1)
    [drift] = detector.observe(readings(2 * SAMPLE, mean=30.0), now=2)
    assert (drift.stream, drift.field, drift.at) == ("readings", "level", 2)
    assert drift.before == "median 9.984 (7.42 to 12.6)"
    assert drift.now == "median 29.94 (27.22 to 32.45)"
    assert detector.shifted() == [drift]


def test_a_shift_is_over_when_the_new_distribution_lasts(detector: DriftDetector) -> None:
    detector.observe(readings(REFERENCE * SAMPLE), now=1)
    assert [drift.field for drift in detector.observe(readings(SAMPLE, sites="xyz"), now=2)] == [
        "site"
    ]
    assert detector.observe(readings(2 * REFERENCE * SAMPLE, sites="xyz", seed=2), now=3) == []
    assert detector.shifted() == []


def test_events_that_do_not_fit_the_schema_are_ignored(detector: DriftDetector) -> None:
    for _ in range(4):
        good = [event.replace(b'"a"', b'["a"]') for event in readings(SAMPLE)]
        garbage = [b"", b"{", b"[1]", b"\xff", b'{"level": "high", "site": 5}', None]
        assert detector.observe([*garbage, *good], now=1) == []


def test_the_memory_of_a_detector_is_bounded(detector: DriftDetector) -> None:
    detector.observe(readings(40 * SAMPLE), now=1)
    for field in detector._fields:
        assert len(field.reference) <= REFERENCE
        assert len(field.sample) < SAMPLE
