from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer as KafkaProducer

from millstream import App
from millstream.errors import LogError
from millstream.log.broker import Broker
from millstream.log.connection import client_config
from millstream.log.consumer import BEGINNING, Reader, bounds, read_range
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.log.topic_names import view_topic
from millstream.pipeline.pipeline_topics import ensure_topics, recreate_topic


def fill(log: LogSettings, topic: str, values: range) -> None:
    producer = KafkaProducer(client_config(log, enable_idempotence=True))
    for value in values:
        producer.produce(topic, str(value).encode(), partition=0)
    assert producer.flush(30) == 0


def numbers(records: list[Record]) -> list[int]:
    return [int(record.value or b"-1") for record in records]


@contextmanager
def reading(*arguments: Any, **more: Any) -> Iterator[Reader]:
    reader = Reader(*arguments, **more)
    try:
        yield reader
    finally:
        reader.close()
        reader.join()


def test_a_reader_hands_over_everything_from_its_offset_on_and_then_what_comes(
    log_settings: LogSettings, topic: str, eventually: Callable[..., None]
) -> None:
    fill(log_settings, topic, range(100))
    seen: list[Record] = []
    with reading(log_settings, {(topic, 0): 40}, seen.extend):
        eventually(lambda: len(seen) == 60)
        fill(log_settings, topic, range(100, 110))
        eventually(lambda: len(seen) == 70)
    assert numbers(seen) == list(range(40, 110))
    assert [record.offset for record in seen] == list(range(40, 110))


def test_a_reader_tells_once_when_it_has_caught_up_also_on_an_empty_topic(
    log_settings: LogSettings, topic: str, eventually: Callable[..., None]
) -> None:
    told = threading.Semaphore(0)
    start = {(topic, 0): BEGINNING}
    with reading(log_settings, start, print, caught_up=told.release) as reader:
        assert told.acquire(timeout=30)
        assert reader.is_caught_up
    fill(log_settings, topic, range(3))
    seen: list[Record] = []
    counts: list[int] = []
    with reading(log_settings, start, seen.extend, caught_up=lambda: counts.append(len(seen))):
        eventually(lambda: counts)
        fill(log_settings, topic, range(3, 5))
        eventually(lambda: len(seen) == 5)
    assert counts == [3]


async def test_with_a_loop_lists_are_delivered_in_it_one_at_a_time(
    log_settings: LogSettings, topic: str
) -> None:
    fill(log_settings, topic, range(2500))
    seen: list[Record] = []
    sizes: list[int] = []
    done = asyncio.Event()
    home = threading.get_ident()

    def deliver(records: list[Record]) -> None:
        assert threading.get_ident() == home
        sizes.append(len(records))
        seen.extend(records)
        if len(seen) == 2500:
            done.set()

    loop = asyncio.get_running_loop()
    reader = Reader(log_settings, {(topic, 0): 0}, deliver, loop=loop, batch=1000)
    await asyncio.wait_for(done.wait(), 30)
    reader.close()
    await asyncio.to_thread(reader.join)
    assert numbers(seen) == list(range(2500))
    assert max(sizes) <= 1000


async def test_after_close_nothing_is_delivered(log_settings: LogSettings, topic: str) -> None:
    fill(log_settings, topic, range(3000))
    seen: list[Record] = []
    closed_at: list[int] = []

    def deliver(records: list[Record]) -> None:
        seen.extend(records)
        reader.close()
        closed_at.append(len(seen))

    loop = asyncio.get_running_loop()
    reader = Reader(log_settings, {(topic, 0): 0}, deliver, loop=loop, batch=100)
    await asyncio.to_thread(reader.join)
    assert closed_at == [len(seen)]


def test_a_paused_reader_waits_until_it_is_resumed(
    log_settings: LogSettings, topic: str, eventually: Callable[..., None]
) -> None:
    seen: list[Record] = []
    with reading(log_settings, {(topic, 0): 0}, seen.extend) as reader:
        eventually(lambda: reader.is_caught_up)
        reader.pause()
        eventually(lambda: reader.is_paused)
        fill(log_settings, topic, range(5))
        other: list[Record] = []
        with reading(log_settings, {(topic, 0): 0}, other.extend):
            eventually(lambda: len(other) == 5)
        assert seen == []
        reader.resume()
        eventually(lambda: len(seen) == 5)


def test_a_receiver_that_fails_ends_the_reading_and_the_failure_is_kept(
    log_settings: LogSettings, topic: str, eventually: Callable[..., None]
) -> None:
    fill(log_settings, topic, range(1))

    def refuse(_: list[Record]) -> None:
        raise ZeroDivisionError

    with reading(log_settings, {(topic, 0): 0}, refuse) as reader:
        eventually(lambda: reader.failure)
        assert isinstance(reader.failure, ZeroDivisionError)


def test_an_offset_that_the_log_does_not_have_is_told_as_lost(
    log_settings: LogSettings, topic: str, eventually: Callable[..., None]
) -> None:
    lost: list[tuple[str, int]] = []
    fill(log_settings, topic, range(3))
    with reading(log_settings, {(topic, 0): 77}, print, lost=lambda t, p: lost.append((t, p))):
        eventually(lambda: lost)
    assert lost == [(topic, 0)]


def test_a_topic_that_is_made_anew_under_a_reader_is_told_as_lost(
    log_settings: LogSettings, app: App, eventually: Callable[..., None]
) -> None:
    ensure_topics(app, log_settings)
    topic = view_topic(app.name, "of_oslo")
    seen: list[Record] = []
    lost: list[tuple[str, int]] = []
    fill(log_settings, topic, range(5))
    with reading(log_settings, {(topic, 0): 0}, seen.extend, lost=lambda t, p: lost.append((t, p))):
        eventually(lambda: len(seen) == 5)
        recreate_topic(app, log_settings, "of_oslo")
        fill(log_settings, topic, range(100, 120))
        eventually(lambda: lost)
    assert numbers(seen) == list(range(5)), "records of the new topic were taken for the old one's"


def test_a_reader_goes_on_where_it_was_after_kafka_was_killed(
    own_broker: Broker,
    make_pipeline: Callable[[str], App],
    app_name: str,
    eventually: Callable[..., None],
) -> None:
    log = LogSettings(bootstrap=own_broker.bootstrap)
    ensure_topics(make_pipeline(app_name), log)
    topic = f"{app_name}.stream.events"
    seen: list[Record] = []
    with reading(log, {(topic, 0): 0}, seen.extend, lost=lambda *_: pytest.fail("lost")):
        fill(log, topic, range(10))
        eventually(lambda: len(seen) == 10)
        own_broker.kill()
        own_broker.start()
        fill(log, topic, range(10, 20))
        eventually(lambda: len(seen) == 20)
    assert numbers(seen) == list(range(20))


def test_a_range_is_read_without_its_end_and_not_beyond_what_is_there(
    log_settings: LogSettings, topic: str
) -> None:
    fill(log_settings, topic, range(10))
    assert numbers(list(read_range(log_settings, topic, 0, 3, 7))) == [3, 4, 5, 6]
    assert numbers(list(read_range(log_settings, topic, 0, 8, 99))) == [8, 9]
    assert list(read_range(log_settings, topic, 0, 5, 5)) == []


def test_a_range_that_the_log_no_longer_holds_is_an_error(
    log_settings: LogSettings, topic: str
) -> None:
    fill(log_settings, topic, range(2))
    with pytest.raises(LogError, match=r"cannot read .* from offset 50 on"):
        list(read_range(log_settings, topic, 0, 50, 60))


def test_the_bounds_of_a_topic_are_told_and_a_missing_topic_is_an_error(
    log_settings: LogSettings, topic: str
) -> None:
    fill(log_settings, topic, range(4))
    assert bounds(log_settings, topic) == {0: (0, 4)}
    with pytest.raises(LogError, match=f"cannot look at topic {topic}.none"):
        bounds(log_settings, f"{topic}.none")


def test_a_reader_catches_up_with_a_topic_that_never_rests(
    log_settings: LogSettings, topic: str, eventually: Callable[..., None]
) -> None:
    fill(log_settings, topic, range(5_000))
    producer = KafkaProducer(client_config(log_settings, linger_ms=0))
    ended, caught_up, seen = threading.Event(), threading.Event(), list[Record]()

    def write_on() -> None:
        while not ended.wait(0.005):
            producer.produce(topic, b"0", partition=0)
            producer.poll(0)
        producer.flush(30)

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        start = {(topic, 0): BEGINNING}
        with reading(log_settings, start, seen.extend, caught_up=caught_up.set) as reader:
            eventually(caught_up.is_set)
            assert reader.is_caught_up
            assert len(seen) >= 5_000
    finally:
        ended.set()
        writer.join()
