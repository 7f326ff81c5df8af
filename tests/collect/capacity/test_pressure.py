"""Retry-After: when there will be room, at the rate at which the journal drains."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.clock import Clock
from tests.collect.conftest import click, collect, problem, shop

from millstream.collect.capacity.pressure import Pressure
from millstream.collect.journal import Journal, JournalSettings
from millstream.log.settings import LogSettings
from millstream.runtime.measure import Rate


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    journal = await Journal.open(tmp_path, JournalSettings(max_bytes=100_000, segment_bytes=10_000))
    yield journal
    await journal.close()


async def test_retry_after_is_when_there_will_be_room(journal: Journal) -> None:
    clock = Clock()
    drained = Rate(clock)
    pressure = Pressure(journal, drained)
    assert (pressure.level, pressure.retry_after()) == (0.0, 1)
    for _ in range(96):
        await journal.append(b"x" * 1000)[1]
    assert 0.9 < pressure.level <= 1.0
    assert pressure.retry_after() == 5  # nothing drains: Kafka is away
    excess = journal.pending_bytes - 90_000
    for per_second, wait in ((1_000_000, 1), (excess // 10, 10), (1, 60)):
        for _ in range(10):
            clock.now += 1
            drained.add(per_second)
        assert 0.8 * wait <= pressure.retry_after() <= min(60, wait + 1)
    for sequence in range(1, 31):
        journal.settle(sequence)
    assert pressure.retry_after() == 1


async def test_a_body_larger_than_the_journal_gets_a_413_on_every_path(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    room = {"max_bytes": 64 << 10, "segment_bytes": 8 << 10}
    async with collect(shop(app_name), log_settings, tmp_path, journal=room) as collector:
        for size in (65_500, 70_000):
            body = click(1, name="x" * size)[:size]
            answer = await collector.http.post("/v1/streams/clicks", content=body)
            content = problem(answer, 413)
            assert "journal.max_bytes" in str(content["detail"])
            assert "retry-after" not in answer.headers
        assert (await collector.http.get("/health/ready")).status_code == 200
        assert (await collector.post("clicks", click(2))).status_code == 200
