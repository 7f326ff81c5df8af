"""The intake of a source waits when there is no room."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from tests.collect.conftest import click, shop

from millstream.collect.capacity.wait_queue import WaitQueues
from millstream.collect.dedup.dedup import Dedup
from millstream.collect.intake.failed import FailedStore
from millstream.collect.intake.intake import Intake
from millstream.collect.intake.source_intake import SourceIntake
from millstream.collect.journal import Journal, JournalSettings
from millstream.collect.settings import CollectSettings
from millstream.log.producing.batch_producer import BatchProducer
from millstream.log.producing.producer import Producer
from millstream.log.settings import LogSettings
from millstream.pipeline.pipeline_topics import ensure_topics, event_topics


@contextlib.asynccontextmanager
async def small_intake(
    app_name: str, log_settings: LogSettings, folder: Path
) -> AsyncIterator[Intake]:
    """An intake with a journal of two small files; nothing is sent to Kafka yet."""
    app = shop(app_name)
    await asyncio.to_thread(ensure_topics, app, log_settings)
    journal = await Journal.open(
        folder / "journal", JournalSettings(max_bytes=8192, segment_bytes=4096)
    )
    ids = Producer(log_settings)
    dedup = await Dedup.open(app, log_settings, ids, 1000)
    failed = FailedStore(folder / "failed")
    make_producer = partial(BatchProducer, log_settings, event_topics(app))
    queues = WaitQueues(0)
    intake = Intake(app, CollectSettings(), journal, make_producer, failed, dedup, queues)
    producer = intake.forwarder.producer
    await producer.connect()
    reading = asyncio.create_task(intake.forwarder.run())
    yield intake
    reading.cancel()
    await dedup.close()
    await producer.close()
    await ids.close()
    await journal.close()


async def test_a_full_journal_makes_a_source_wait_and_loses_nothing(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    async with small_intake(app_name, log_settings, tmp_path) as intake:
        stream = intake.streams["clicks"]
        output = SourceIntake(intake, stream, "clicks", "ws://127.0.0.1/clicks")
        stored = [await output.offer(click(number, name="x" * 2000)) for number in range(4)]
        await asyncio.gather(*stored[:3])
        assert not stored[3].done()
        assert (stream.refused > 0, intake.journal.is_full) == (True, True)
        intake.forwarder.open({})
        async with asyncio.timeout(30):
            await stored[3]
        assert not intake.journal.is_full
        await intake.forwarder.drain(30)
        assert stream.logged == 4


async def test_a_message_larger_than_the_journal_is_set_aside_and_the_source_goes_on(
    app_name: str, log_settings: LogSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    large = [click(number, name="x" * 5000) for number in (2, 3)]
    async with small_intake(app_name, log_settings, tmp_path) as intake:
        stream = intake.streams["clicks"]
        output = SourceIntake(intake, stream, "clicks", "ws://127.0.0.1/clicks")
        intake.forwarder.open({})
        async with asyncio.timeout(60):
            await output.offer(click(1), bookmark=b"1")
            set_aside = await output.offer(b"[%b,%b]" % tuple(large), bookmark=b"3")
            last = await output.offer(click(4), bookmark=b"4")
            await set_aside
            await last
        assert output.bookmark == b"4"
        await intake.forwarder.drain(30)
        assert (stream.accepted, stream.logged, stream.failed, stream.pending) == (4, 2, 2, 0)
        failed = list(FailedStore(tmp_path / "failed").list())
        assert [each.value for each in failed] == large
        assert {each.topic for each in failed} == {stream.topic}
        assert all("raise journal.max_bytes" in each.reason for each in failed)
        told = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
        assert len(told) == 1
        assert "clicks for stream clicks is too large" in told[0]
        assert "`millstream failed list`" in told[0]


async def test_an_unreadable_message_of_a_source_is_rejected_without_the_journal_too(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    async with small_intake(app_name, log_settings, tmp_path) as intake:
        stream = intake.streams["ticks"]
        output = SourceIntake(intake, stream, "ticks", "ws://127.0.0.1/ticks")
        intake.forwarder.open({})
        await output.offer(b"no event", content_type="image/png")
        await output.offer(b'{"id": 1}')
        await intake.forwarder.drain(30)
        assert (stream.accepted, stream.logged, stream.rejected, stream.pending) == (2, 1, 1, 0)


async def test_the_bookmark_of_a_message_that_was_set_aside_is_on_disk(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    async with small_intake(app_name, log_settings, tmp_path) as intake:
        output = SourceIntake(intake, intake.streams["clicks"], "clicks", "ws://127.0.0.1/clicks")
        async with asyncio.timeout(60):
            stored = await output.offer(click(1, name="x" * 10_000), bookmark=b"1")
            assert output.bookmark is None
            await stored
        assert output.bookmark == b"1"
        assert len(FailedStore(tmp_path / "failed").ids()) == 1
        assert await output.close(1) == 0
