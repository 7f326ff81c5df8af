"""Rows that a view keeps for a time only."""

from __future__ import annotations

import json
import time
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.analyze.expiry import ENDS, End, Expiry, Lives, Place, Return
from millstream.analyze.plan import ViewPlan
from millstream.log.connection import client_config
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.store.table import Table

KEY = b'["x"]'


def view(topic: str = "t", window: str | None = None, keep_ms: int | None = 1000) -> ViewPlan:
    return ViewPlan(
        name="v",
        inputs=("s",),
        reads=("s",),
        topic=topic,
        key=("k",),
        columns=(),
        window=window,
        mode="real_time",
        output_mode="update",
        reason="",
        lineage="revision",
        doubt="",
        slots=1,
        keep_ms=keep_ms,
        generation="g",
        description="",
    )


def row(offset: int, timestamp: int, **value: Any) -> Record:
    return Record("t", 0, offset, timestamp, KEY, json.dumps(value).encode(), ())


def tombstone(offset: int, ends: int) -> Record:
    return Record("t", 0, offset, 0, KEY, None, ((ENDS, str(ends).encode()),))


def test_a_row_ends_that_long_after_its_last_change() -> None:
    lives = Lives([view()])
    lives.apply(row(0, timestamp=0))
    lives.apply(row(1, timestamp=500))
    assert lives.ends(now=1499) == []
    assert lives.ends(now=1500) == [End(Place("t", 0, KEY), offset=1)]
    assert lives.ends(now=9999) == [], "it is on its way"


def test_a_window_ends_that_long_after_its_end_whenever_it_changed() -> None:
    lives = Lives([view(window="w")])
    window = {"start": "1970-01-01T00:00:00.000000Z", "end": "1970-01-01T00:01:00.000000Z"}
    lives.apply(row(0, timestamp=99_999, w=window))
    assert lives.ends(now=60_999) == []
    assert len(lives.ends(now=61_000)) == 1


def test_a_tombstone_that_did_not_get_through_is_due_again() -> None:
    lives = Lives([view()])
    lives.apply(row(0, timestamp=0))
    (end,) = lives.ends(now=1000)
    lives.failed(end)
    assert lives.ends(now=1001) == [end]


def test_a_newer_row_that_a_tombstone_overtook_is_written_again() -> None:
    lives = Lives([view()])
    lives.apply(row(0, timestamp=0))
    lives.ends(now=1000)
    lives.apply(row(1, timestamp=1001, n=2))
    lives.apply(tombstone(2, ends=0))
    (back,) = lives.returns()
    assert back == Return(Place("t", 0, KEY), b'{"n": 2,"_returned":2}', 1001)
    assert lives.returns() == []
    lives.apply(Record("t", 0, 3, 1001, KEY, back.value, ()))
    lives.apply(tombstone(4, ends=1))
    assert [each.value for each in lives.returns()] == [b'{"n": 2,"_returned":4}']


def test_a_server_shows_a_row_that_was_written_again() -> None:
    lives, table = Lives([view()]), Table(keyed=True)

    def log(record: Record) -> None:
        lives.apply(record)
        table.apply(*record[1:6])

    log(row(0, timestamp=0, _revision=1))
    log(row(1, timestamp=900, _revision=2))
    log(tombstone(2, ends=0))
    assert list(table.rows) == []
    (back,) = lives.returns()
    log(Record("t", 0, 3, back.timestamp, KEY, back.value, ()))
    assert [each["_revision"] for each in table.rows.values()] == [2]
    log(row(4, timestamp=950, _revision=3))
    assert [each["_revision"] for each in table.rows.values()] == [3]


def test_a_row_that_is_back_already_is_not_written_once_more() -> None:
    lives = Lives([view()])
    for record in (row(0, 0), row(1, 10), tombstone(2, ends=0), row(3, 10)):
        lives.apply(record)
    assert lives.returns() == []
    assert lives.ends(now=2000) == [End(Place("t", 0, KEY), offset=3)]


def test_a_row_that_comes_anew_after_its_end_ends_anew() -> None:
    lives = Lives([view()])
    lives.apply(row(0, timestamp=0))
    lives.ends(now=1000)
    lives.apply(tombstone(1, ends=0))
    assert lives.returns() == []
    lives.apply(row(2, timestamp=5000))
    assert lives.ends(now=5999) == []
    assert lives.ends(now=6000) == [End(Place("t", 0, KEY), offset=2)]


def test_tombstones_reach_the_row_s_own_partition_and_survive_a_restart(
    log_settings: LogSettings, app_name: str, eventually: Any
) -> None:
    topic, now = f"{app_name}.kept", time.time_ns() // 1_000_000
    admin = AdminClient(client_config(log_settings))
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(10)
    producer = Producer(client_config(log_settings))
    for partition in range(3):
        key = f'["{partition}"]'
        producer.produce(topic, "{}", key, partition, timestamp=now - 5000 * partition)
    producer.flush(10)
    views = [view(topic, keep_ms=5000), view("ignored", keep_ms=None)]

    def records() -> list[tuple[int, str, bytes | None]]:
        consumer = Consumer(client_config(log_settings, group_id="t", enable_partition_eof=True))
        consumer.assign([TopicPartition(topic, number, 0) for number in range(3)])
        found: list[tuple[int, str, bytes | None]] = []
        ended = 0
        while ended < 3:
            message = consumer.poll(5)
            assert message is not None
            if message.error():
                ended += 1
                continue
            key = message.key()
            assert isinstance(key, bytes)
            found.append((message.partition() or 0, key.decode(), message.value()))
        consumer.close()
        return found

    for clock, gone in ((now, {1, 2}), (now, {1, 2}), (now + 5000, {0, 1, 2})):
        expiry = Expiry(log_settings, views, clock=lambda clock=clock: clock)  # type: ignore[misc]
        expected = {(number, f'["{number}"]') for number in gone}

        def ended(expiry: Expiry = expiry, expected: set[tuple[int, str]] = expected) -> bool:
            expiry.tick()
            found = [(p, k) for p, k, value in records() if value is None]
            assert len(found) == len(set(found)), "a row ended twice"
            return set(found) == expected

        eventually(ended)
        expiry.close()
