"""Shedding under pressure, and the recorded share that was kept."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
from tests.collect.collector_state import balance, is_at_rest, leave_in_journal
from tests.collect.conftest import collect, headers, until

from millstream.collect.capacity.shedding import MOST, Shedder
from millstream.collect.raw_message import RawMessage
from millstream.log.settings import LogSettings
from millstream.pipeline.app import App

SCHEMA = "id LONG, level STRING, at TIMESTAMP"


def pipeline(name: str, shed: str = "random", shed_at: float = 0.6) -> App:
    app = App(name)
    app.stream("samples", schema=SCHEMA, delivery="at_least_once", shed=shed, shed_at=shed_at)
    return app


def shedder(shed: str = "random", seed: int = 7) -> Shedder:
    stream = pipeline("shop", shed).streams["samples"]
    return Shedder(stream, random.Random(seed).random)


def test_the_share_that_is_dropped_grows_with_the_pressure_up_to_a_maximum() -> None:
    kept = shedder().share_kept
    assert [kept(level) for level in (0.0, 0.59, 0.6)] == [1.0, 1.0, 1.0]
    assert kept(0.8) == pytest.approx(1 - MOST / 2)
    assert kept(1.0) == pytest.approx(1 - MOST)
    levels = [kept(level / 100) for level in range(101)]
    assert levels == sorted(levels, reverse=True)


@pytest.mark.parametrize("shed", ["random", "level = 'debug'"])
def test_the_sampling_rate_of_kept_events_gives_the_original_number(shed: str) -> None:
    chance, subject = random.Random(3), shedder(shed)
    estimate = variance = 0.0
    total = 20_000
    for _ in range(total // 10):
        share = subject.share_kept(chance.uniform(0.5, 1.0))
        levels = [chance.choice(["debug", "error"]) for _ in range(10)]
        values = [json.dumps({"id": 1, "level": level}).encode() for level in levels]
        dropped, spared = subject.choose(values, share)
        if shed != "random":
            assert list(spared) == [at for at, level in enumerate(levels) if level == "error"]
        assert not set(dropped) & set(spared)
        estimate += len(spared) + (10 - len(spared) - len(dropped)) / share
        variance += (10 - len(spared)) * (1 - share) / share
    assert abs(estimate - total) < 3 * math.sqrt(variance)
    assert math.sqrt(variance) < 0.02 * total


def test_an_unreadable_event_is_not_shed() -> None:
    values = [b"{", b"[1]", b'{"level": 5}', b'{"level": "debug"}', b"null", b"\xff"]
    dropped, spared = shedder("level = 'debug'").choose(values, 0.0)
    assert (dropped, spared) == ((3,), (0, 1, 2, 4, 5))


@pytest.mark.parametrize("condition", ["level LIKE 'd%'", "upper(level) = 'D'", "level = 'd'"])
def test_an_event_that_the_condition_cannot_judge_is_not_shed(condition: str) -> None:
    values = [
        *(b'{"level": [1]}', b'{"level": {}}', b'{"level": true}', b'{"level": 1e999}'),
        *(b'{"level": "\xff"}', b'{"level": "d", "more": "\xff"}', b'{"level": "d"}'),
    ]
    dropped, spared = shedder(condition).choose(values, 0.0)
    assert (dropped, spared) == ((6,), (0, 1, 2, 3, 4, 5))


def test_times_are_read_as_senders_write_them() -> None:
    old, new = b'{"at": "2026-01-01T01:00:00+02:00"}', b'{"at": 1767225600000}'
    dropped, _ = shedder("at < '2026-01-01T00:00:00Z'").choose([old, new], 0.0)
    assert dropped == (0,)


async def test_shedding_is_not_decided_again_after_a_crash(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    body = b'{"id": 0}\n{"id": 1}\n{"id": 2}\n{broken'
    decided = RawMessage("samples", 1, body, sampled_rate=0.5, shed=(1, 3), spared=(2,))
    await leave_in_journal(tmp_path, decided)
    async with collect(pipeline(app_name), log_settings, tmp_path) as collector:
        await until(lambda: is_at_rest(collector))
        records = await collector.logged("samples")
        assert [record.value for record in records] == [b'{"id": 0}', b'{"id": 2}']
        assert [headers(r).get("ce_sampledrate") for r in records] == ["0.5", None]
        assert await collector.rejected("samples") == []
        assert await balance(collector, "samples") == 0
