"""Collectors share ids through the log, and know them after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator
from functools import partial

import pytest
from tests.collect.conftest import read_topic, until

from millstream.collect.dedup.dedup import Dedup, Original, dedup_id
from millstream.log.producing.producer import Producer
from millstream.log.settings import LogSettings
from millstream.log.topic_names import seen_topic
from millstream.pipeline.app import App
from millstream.pipeline.pipeline_topics import ensure_topics


def now() -> int:
    return time.time_ns() // 1_000_000


def pipeline(name: str) -> App:
    app = App(name)
    app.stream("orders", schema="id LONG")
    app.stream("visits", schema="id LONG", dedup="2 seconds")
    app.stream("pings", schema="id LONG", delivery="at_least_once")
    app.stream("bare", schema="id LONG", dedup="0 seconds")
    return app


@pytest.fixture
async def app(app_name: str, log_settings: LogSettings) -> App:
    app = pipeline(app_name)
    await asyncio.to_thread(ensure_topics, app, log_settings)
    return app


@contextlib.asynccontextmanager
async def knowing(app: App, log: LogSettings, most: int = 1_000_000) -> AsyncIterator[Dedup]:
    """The ids of one running collector."""
    producer = Producer(log)
    dedup = await Dedup.open(app, log, producer, most)
    try:
        yield dedup
    finally:
        await dedup.close()
        await producer.close()


async def test_two_collectors_share_their_ids(app: App, log_settings: LogSettings) -> None:
    here, there = dedup_id("/till", "1"), dedup_id("/till", "2")
    async with knowing(app, log_settings) as one, knowing(app, log_settings) as two:
        mine, yours = Original("one", 5, 0, now()), Original("two", 9, 3, now(), count=4)
        one.claim("orders", here, mine)
        two.claim("orders", there, yours)
        assert one.seen("orders", here) == mine  # at once
        await until(lambda: two.seen("orders", here) and one.seen("orders", there))
        assert two.seen("orders", here) == mine
        assert one.seen("orders", there) == yours
        assert one.seen("visits", here) is None  # another stream's ids are others


async def test_ids_are_known_after_a_restart(app: App, log_settings: LogSettings) -> None:
    originals = {dedup_id("/till", str(n)): Original("one", n, 0, now()) for n in range(25_000)}
    async with knowing(app, log_settings) as before:
        for digest, first in originals.items():
            before.claim("orders", digest, first)
        await before.written("orders")
    records = await asyncio.to_thread(read_topic, log_settings, seen_topic(app.name, "orders"))
    assert len(records) <= 25  # packed: many ids a record
    async with knowing(app, log_settings) as after:
        assert all(after.seen("orders", digest) == first for digest, first in originals.items())
        assert (after.held, after.forgotten, after.doubled) == (25_000, 0, 0)


async def test_a_restart_reads_no_more_than_the_window(app: App, log_settings: LogSettings) -> None:
    digest = dedup_id("/till", "1")
    async with knowing(app, log_settings) as before:
        received = now()
        before.claim("visits", digest, Original("one", 1, 0, received))
        await before.written("visits")
        await until(lambda: now() >= received + 2_000)
        assert before.seen("visits", digest) is None
        before.claim("visits", digest, Original("one", 2, 0, now()))
        await before.written("visits")
    async with knowing(app, log_settings) as after:
        first = after.seen("visits", digest)
        assert first is None or first.sequence == 2
        assert after.held <= 1


async def test_streams_with_weaker_delivery_remember_no_ids(
    app: App, log_settings: LogSettings
) -> None:
    digest = dedup_id("/till", "1")
    async with knowing(app, log_settings) as dedup:
        for stream in ("pings", "bare"):
            dedup.claim(stream, digest, Original("one", 1, 0, now()))
            assert dedup.seen(stream, digest) is None
            assert dedup.written(stream).done()
        assert dedup.held == 0


async def test_a_released_id_is_forgotten(app: App, log_settings: LogSettings) -> None:
    digest, first = dedup_id("/till", "1"), Original("one", 1, 0, now())
    async with knowing(app, log_settings) as dedup:
        dedup.claim("orders", digest, first)
        dedup.release("orders", digest, Original("two", 1, 0, now()))
        assert dedup.seen("orders", digest) == first
        dedup.release("orders", digest, first)
        assert dedup.seen("orders", digest) is None


async def test_an_id_that_two_collectors_accept_at_once_is_counted(
    app: App, log_settings: LogSettings
) -> None:
    digest = dedup_id("/till", "1")
    async with knowing(app, log_settings) as one, knowing(app, log_settings) as two:
        one.claim("orders", digest, mine := Original("one", 1, 0, now()))
        two.claim("orders", digest, Original("two", 1, 0, now()))
        await until(lambda: one.doubled and two.doubled)
        assert one.seen("orders", digest) == mine
        assert (one.doubled, two.doubled) == (1, 1)


async def test_forgetting_ids_early_is_logged(
    app: App, log_settings: LogSettings, caplog: pytest.LogCaptureFixture
) -> None:
    async with knowing(app, log_settings, most=100) as dedup:
        with caplog.at_level(logging.WARNING):
            for number in range(150):
                first = Original("one", number, 0, now())
                dedup.claim("orders", dedup_id("/till", str(number)), first)
        assert dedup.held <= 100
        assert dedup.forgotten == 150 - dedup.held
    assert "raise collect.dedup_ids" in caplog.text


async def test_ids_wait_for_kafka_and_are_not_lost(app: App, log_settings: LogSettings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    producer = Producer(LogSettings(bootstrap=f"127.0.0.1:{port}"))
    dedup = await Dedup.open(app, log_settings, producer, 1_000_000)
    originals = {dedup_id("/till", str(n)): Original("one", n, 0, now()) for n in range(100)}
    for digest, first in originals.items():
        dedup.claim("orders", digest, first)
        await asyncio.sleep(0.002)  # many batches, of which a few may be under way at once
    assert not dedup.written("orders").done()
    assert len(producer) <= 4
    async with await asyncio.start_server(partial(relay, log_settings.bootstrap), port=port):
        await asyncio.wait_for(asyncio.shield(dedup.written("orders")), 60)
        await dedup.close()
        await producer.close()
    async with knowing(app, log_settings) as after:
        assert all(after.seen("orders", digest) == first for digest, first in originals.items())


async def relay(to: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A proxy to Kafka that tells clients its own address."""
    host, port = to.split(":")
    from_kafka, to_kafka = await asyncio.open_connection(host, int(port))

    async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            target.write(data)
        target.close()

    await asyncio.gather(
        pass_on(reader, to_kafka), pass_on(from_kafka, writer), return_exceptions=True
    )
