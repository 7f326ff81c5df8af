"""A source's way in: when there is no room, it waits."""

from __future__ import annotations

import asyncio
from pathlib import Path

from millstream.collect.dedup import Dedup
from millstream.collect.failed import FailedStore
from millstream.collect.inlet import StreamInlet
from millstream.collect.intake import Intake
from millstream.collect.journal import Journal, JournalSettings
from millstream.collect.settings import CollectSettings
from millstream.log.batch_producer import BatchProducer
from millstream.log.producer import Producer
from millstream.log.settings import LogSettings
from millstream.log.topics import ensure_topics, event_topics

from .conftest import click, shop


async def test_a_full_journal_makes_a_source_wait_and_loses_nothing(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    app = shop(app_name)
    await asyncio.to_thread(ensure_topics, app, log_settings)
    journal = await Journal.open(
        tmp_path / "journal", JournalSettings(max_bytes=8192, segment_bytes=4096)
    )
    ids = Producer(log_settings)
    dedup = await Dedup.open(app, log_settings, ids, 1000)
    producer = await BatchProducer.open(log_settings, event_topics(app))
    failed = FailedStore(tmp_path / "failed")
    intake = Intake(app, CollectSettings(), journal, producer, failed, dedup)
    lane = intake.lanes["clicks"]
    inlet = StreamInlet(intake, lane, "clicks", "ws://127.0.0.1/clicks")
    stored = [await inlet.offer(click(number, name="x" * 2000)) for number in range(4)]
    await asyncio.gather(*stored[:3])
    assert not stored[3].done()
    assert (lane.refused > 0, journal.is_full) == (True, True)
    intake.forwarder.open({})
    reading = asyncio.create_task(intake.forwarder.run())
    async with asyncio.timeout(30):
        await stored[3]
    assert not journal.is_full
    await intake.forwarder.drain(30)
    assert lane.logged == 4
    reading.cancel()
    await dedup.close()
    await producer.close()
    await ids.close()
    await journal.close()
