from __future__ import annotations

import asyncio
import time

import pytest

from millstream.errors import LogError
from millstream.log.consumer import read_range
from millstream.log.producing.producer import Producer, RecordMetadata
from millstream.log.settings import LogSettings

NOWHERE = LogSettings(bootstrap="127.0.0.1:1")


async def test_a_record_is_in_the_log_as_it_was_sent_once_its_future_is_done(
    log_settings: LogSettings, topic: str
) -> None:
    producer, now = Producer(log_settings), time.time_ns() // 1_000_000
    delivery = await producer.send(
        topic, b"value", key="key", timestamp=now, headers={"ce_id": "1"}
    )
    await producer.close()
    assert delivery == (topic, 0, 0)
    (record,) = await asyncio.to_thread(lambda: list(read_range(log_settings, topic, 0, 0, 1)))
    assert record == (topic, 0, 0, now, b"key", b"value", (("ce_id", b"1"),))


async def test_many_records_are_delivered_in_the_order_in_which_they_were_sent(
    log_settings: LogSettings, topic: str
) -> None:
    producer = Producer(log_settings)
    sent = [producer.send(topic, b"%d" % n, key="same") for n in range(5000)]
    assert [d.offset for d in await asyncio.gather(*sent)] == list(range(5000))
    assert len(producer) == 0
    await producer.close()


async def test_a_topic_that_does_not_exist_fails_the_record(
    log_settings: LogSettings, app_name: str
) -> None:
    producer = Producer(log_settings, patience=2.0)
    with pytest.raises(LogError, match=f"{app_name}.missing did not take a record"):
        await producer.send(f"{app_name}.missing", b"")
    await producer.close()


async def test_while_kafka_is_away_records_fail_after_patience_and_closing_does_not_hang() -> None:
    producer = Producer(NOWHERE, patience=1.0)
    with pytest.raises(LogError) as caught:
        await producer.send("topic", b"")
    assert caught.value.retry
    waiting = producer.send("topic", b"")
    await producer.close(seconds=0.1)
    with pytest.raises(LogError):
        await waiting


async def test_a_full_buffer_is_an_error_that_says_to_try_again() -> None:
    producer = Producer(NOWHERE)

    def overfill() -> None:
        for _ in range(200):
            futures.append(producer.send("topic", bytes(900_000)))

    futures: list[asyncio.Future[RecordMetadata]] = []
    with pytest.raises(LogError, match="are waiting for Kafka; send it again") as caught:
        overfill()
    assert caught.value.retry
    await producer.close(seconds=0)
    answers = await asyncio.gather(*futures, return_exceptions=True)
    assert all(isinstance(answer, LogError) for answer in answers)
