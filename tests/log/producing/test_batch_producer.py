"""Records in batches: all there, once, in order, whatever Kafka does meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic
from tests.log.guarded import guarded_broker
from tests.record_size_limit import limit_record_size
from tests.wait_until import until

from millstream.errors import LogError
from millstream.log.broker import Broker
from millstream.log.connection import admin
from millstream.log.consumer import bounds, read_range
from millstream.log.producing.batch_producer import (
    Batch,
    BatchProducer,
    Fields,
    OnResult,
    RecordRefused,
)
from millstream.log.producing.producer import Producer
from millstream.log.record import Record
from millstream.log.settings import LogSettings

# Kafka deletes records by their own time, and forgets producers by the time of their last one.
TODAY = time.time_ns() // 1_000_000
DAY = 86_400_000


class Sender:
    """Hands numbered records over, and keeps what becomes of each."""

    def __init__(self, make: Callable[[OnResult], BatchProducer], topic: str) -> None:
        self.waits_for_log = True
        self.offsets: dict[int, int] = {}
        self.refused: dict[int, str] = {}
        self.handed_over = 0
        self.timestamp = TODAY
        self.producer = make(self._answered)
        self._topic = topic
        self._values: list[tuple[bytes, bytes | None]] = []

    def send(self, *values: bytes, key: bytes | None = b"same") -> None:
        for value in values:
            self._values.append((value, key))
            self.producer.add(self, self.handed_over)
            self.handed_over += 1

    def fields(self, index: int) -> Fields:
        value, key = self._values[index]
        return self._topic, value, key, self.timestamp, [("ce_id", b"%d" % index)]

    async def settled(self) -> None:
        await until(lambda: len(self.offsets) + len(self.refused) == self.handed_over, seconds=90)

    def _answered(self, batch: Batch, outcome: int | LogError) -> None:
        for place, (holder, index) in enumerate(batch.records):
            assert holder is self
            assert index not in self.offsets
            assert index not in self.refused
            if isinstance(outcome, LogError):
                assert isinstance(outcome, RecordRefused), outcome
                self.refused[index] = str(outcome)
            else:
                self.offsets[index] = outcome + place


@asynccontextmanager
async def sending(log: LogSettings, topic: str, patience: float = 30.0) -> AsyncIterator[Sender]:
    sender = Sender(partial(BatchProducer, log, [topic], patience=patience), topic)
    await sender.producer.connect()
    try:
        yield sender
    finally:
        await sender.producer.close()


async def records(log: LogSettings, topic: str) -> list[Record]:
    def read() -> list[Record]:
        places = enumerate(bounds(log, topic).values())
        return [r for n, (low, high) in places for r in read_range(log, topic, n, low, high)]

    return await asyncio.to_thread(read)


def make_topic(log: LogSettings, name: str, partitions: int) -> str:
    client = admin(log)  # held until the answer is there
    for answer in client.create_topics([NewTopic(name, partitions, 1)]).values():
        answer.result(30)
    return name


def remove_topic(log: LogSettings, name: str) -> None:
    client = admin(log)
    for answer in client.delete_topics([name]).values():
        answer.result(30)


async def test_a_record_is_in_the_log_as_it_was_handed_over(
    log_settings: LogSettings, topic: str
) -> None:
    async with sending(log_settings, topic) as sender:
        sender.send(b"value", key=b"key")
        await sender.settled()
    assert sender.offsets == {0: 0}
    expected = (topic, 0, 0, TODAY, b"key", b"value", (("ce_id", b"0"),))
    assert await records(log_settings, topic) == [expected]


@pytest.mark.parametrize("is_awaited", [True, False])
async def test_lone_records_and_bursts_are_in_order_and_told_where_they_are(
    log_settings: LogSettings, topic: str, is_awaited: bool
) -> None:
    async with sending(log_settings, topic) as sender:
        sender.waits_for_log = is_awaited
        for burst in (1, 1, 3000, 1, 5000, 20):
            sender.send(*(b"%d" % n * 50 for n in range(burst)))
            await asyncio.sleep(0)
        await sender.settled()
    assert sender.offsets == {n: n for n in range(8023)}
    there = await records(log_settings, topic)
    assert [dict(r.headers)["ce_id"] for r in there] == [b"%d" % n for n in range(8023)]


async def test_a_key_goes_to_the_partition_where_other_clients_of_ours_put_it(
    log_settings: LogSettings, app_name: str
) -> None:
    topic = await asyncio.to_thread(make_topic, log_settings, f"{app_name}.spread", 7)
    keys = [f"key-{n}".encode() for n in range(200)]
    other = Producer(log_settings)
    await asyncio.gather(*(other.send(topic, b"theirs", key=key) for key in keys))
    await other.close()
    async with sending(log_settings, topic) as sender:
        for key in keys:
            sender.send(b"ours", key=key)
        await sender.settled()
    places: dict[bytes | None, set[int]] = {}
    for record in await records(log_settings, topic):
        places.setdefault(record.key, set()).add(record.partition)
    assert places.keys() == set(keys)
    assert all(len(partitions) == 1 for partitions in places.values())


async def test_records_without_a_key_are_shared_out(
    log_settings: LogSettings, app_name: str
) -> None:
    topic = await asyncio.to_thread(make_topic, log_settings, f"{app_name}.spread", 3)
    async with sending(log_settings, topic) as sender:
        for _ in range(30):
            sender.send(b"x", key=None)
            await sender.settled()
    assert {record.partition for record in await records(log_settings, topic)} == {0, 1, 2}


async def test_what_is_too_large_is_refused_alone_and_the_rest_stays_in_order(
    log_settings: LogSettings, topic: str
) -> None:
    await asyncio.to_thread(limit_record_size, log_settings, topic, 2_000)
    await _is_heeded(log_settings, topic)
    async with sending(log_settings, topic) as sender:
        sender.send(*(b"x" * (5_000 if n in (3, 17) else 100) for n in range(40)))
        await sender.settled()
        sender.send(b"after")
        await sender.settled()
    assert sorted(sender.refused) == [3, 17]
    assert topic in sender.refused[3]
    there = [r for r in await records(log_settings, topic) if r.headers]
    numbers = [dict(r.headers)["ce_id"] for r in there]
    assert numbers == [b"%d" % n for n in range(41) if n not in (3, 17)]


@pytest.mark.parametrize("large", [(), (1, 2_500, 2_501, 5_999)])
async def test_where_kafka_takes_less_than_a_full_batch_they_get_smaller_and_stay_in_order(
    log_settings: LogSettings, topic: str, large: tuple[int, ...]
) -> None:
    await asyncio.to_thread(limit_record_size, log_settings, topic, 100_000)
    await _is_heeded(log_settings, topic, 150_000)
    async with sending(log_settings, topic) as sender:
        # Several full batches: while one is refused, the client has the next one already.
        sender.send(*(b"x" * (150_000 if n in large else 600) for n in range(6_000)))
        await sender.settled()
        assert sorted(sender.refused) == list(large)
        sender.send(*(b"y" * 600 for _ in range(2_000)))
        await sender.settled()
    assert sorted(sender.refused) == list(large)
    there = [r for r in await records(log_settings, topic) if r.headers]
    numbers = [int(dict(r.headers)["ce_id"]) for r in there]
    assert numbers == [n for n in range(8_000) if n not in large]
    assert {r.offset for r in there} == set(sender.offsets.values())


async def _is_heeded(log: LogSettings, topic: str, size: int = 5_000) -> None:
    """Wait until Kafka refuses what is too large: it applies a changed limit a little later."""
    other = Producer(log)

    async def refuses() -> bool:
        try:
            await other.send(topic, b"x" * size)
        except LogError:
            return True
        return False

    await until(refuses)
    await other.close()


async def test_records_for_a_topic_that_is_gone_are_refused_and_others_go_on(
    log_settings: LogSettings, topic: str, app_name: str
) -> None:
    gone = await asyncio.to_thread(make_topic, log_settings, f"{app_name}.gone", 1)

    def answered(batch: Batch, outcome: int | LogError) -> None:
        (lost if batch.topic == gone else kept)._answered(batch, outcome)

    producer = BatchProducer(log_settings, [topic, gone], answered, patience=2.0)
    await producer.connect()
    lost, kept = Sender(lambda _: producer, gone), Sender(lambda _: producer, topic)
    lost.send(b"before")
    await lost.settled()
    await asyncio.to_thread(remove_topic, log_settings, gone)
    lost.send(b"after")
    kept.send(b"first")
    await lost.settled()
    kept.send(b"second")
    await kept.settled()
    await producer.close()
    assert (list(lost.offsets), list(lost.refused)) == ([0], [1])
    assert kept.offsets == {0: 0, 1: 1}


async def test_kafka_may_be_killed_and_stopped_under_load_and_nothing_is_lost_or_doubled(
    own_broker: Broker, app_name: str
) -> None:
    log = LogSettings(bootstrap=own_broker.bootstrap)
    topic = await asyncio.to_thread(make_topic, log, f"{app_name}.events", 1)

    async def pour(sender: Sender) -> None:
        while True:
            sender.send(*(b"x" * 200 for _ in range(20)))
            await asyncio.sleep(0.002)

    async with sending(log, topic, patience=2.0) as sender:
        pouring = asyncio.create_task(pour(sender))
        for _ in range(2):
            more = len(sender.offsets) + 500
            await until(lambda more=more: len(sender.offsets) >= more)  # type: ignore[misc]
            own_broker.kill()
            await asyncio.to_thread(own_broker.start)
        more = len(sender.offsets) + 500
        await until(lambda: len(sender.offsets) >= more)
        os.kill(own_broker.pid, signal.SIGSTOP)
        await asyncio.sleep(3.0)  # longer than the producer's patience
        os.kill(own_broker.pid, signal.SIGCONT)
        await until(lambda: len(sender.offsets) >= more + 500)
        pouring.cancel()
        with suppress(asyncio.CancelledError):
            await pouring
        await sender.settled()
    numbers = [dict(r.headers)["ce_id"] for r in await records(log, topic)]
    out_of_place = [each for each in enumerate(numbers) if each[1] != b"%d" % each[0]]
    assert out_of_place[:3] == []  # of a hundred thousand
    assert len(numbers) == sender.handed_over
    assert [each for each in sender.offsets.items() if each[0] != each[1]][:3] == []


async def test_records_of_days_ago_are_not_doubled_when_kafka_dies_before_it_answers(
    own_broker: Broker, app_name: str
) -> None:
    log = LogSettings(bootstrap=own_broker.bootstrap)
    topic = await asyncio.to_thread(make_topic, log, f"{app_name}.events", 1)
    async with sending(log, topic, patience=2.0) as sender:
        sender.timestamp = TODAY - 3 * DAY  # they waited in a journal while Kafka was away
        sender.send(b"first")
        await sender.settled()
        for connection in sender.producer._client.client._conns.values():
            connection._writer.transport.pause_reading()
        sender.send(b"second")
        await until(lambda: bounds(log, topic)[0][1] == 2)
        own_broker.kill()
        await asyncio.to_thread(own_broker.start)
        await sender.settled()
    numbers = [dict(r.headers)["ce_id"] for r in await records(log, topic)]
    assert numbers == [b"0", b"1"]
    assert sender.offsets == {0: 0, 1: 1}


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_closing_does_not_wait_for_a_kafka_that_is_away(
    own_broker: Broker, app_name: str, how: str
) -> None:
    log = LogSettings(bootstrap=own_broker.bootstrap)
    topic = await asyncio.to_thread(make_topic, log, f"{app_name}.events", 1)
    sender = Sender(partial(BatchProducer, log, [topic]), topic)
    producer = sender.producer
    await producer.connect()
    if how == "killed":
        own_broker.kill()
    else:
        os.kill(own_broker.pid, signal.SIGSTOP)
    sender.send(b"lost")
    await until(lambda: bool(producer._tasks))
    began = time.monotonic()
    await producer.close(0.2)
    assert time.monotonic() - began < 10
    assert not sender.offsets
    if how == "stopped":
        os.kill(own_broker.pid, signal.SIGCONT)


async def test_it_opens_when_kafka_comes_and_not_before(own_broker: Broker, app_name: str) -> None:
    log = LogSettings(bootstrap=own_broker.bootstrap)
    topic = await asyncio.to_thread(make_topic, log, f"{app_name}.events", 1)
    own_broker.kill()
    producer = BatchProducer(log, [topic], lambda *_: None)
    connecting = asyncio.create_task(producer.connect())
    await asyncio.wait([connecting], timeout=1.0)
    assert not connecting.done()
    await asyncio.to_thread(own_broker.start)
    await connecting
    await producer.close()


@pytest.mark.kafka
async def test_a_password_lets_in(tmp_path: Path) -> None:
    with guarded_broker(tmp_path / "kafka") as as_ann:
        log = as_ann("right")
        topic = await asyncio.to_thread(make_topic, log, "app.guarded", 1)
        async with sending(log, topic) as sender:
            sender.send(b"value")
            await sender.settled()
        producer = BatchProducer(as_ann("wrong"), [topic], lambda *_: None)
        connecting = asyncio.create_task(producer.connect())
        await asyncio.wait([connecting], timeout=1.0)
        assert not connecting.done()
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
