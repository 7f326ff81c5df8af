"""States and tombstones in Kafka, across restarts of the writer."""

from __future__ import annotations

import json
import time
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.analyze.row_state.test_row_state import view, window

from millstream.analyze.row_state.row_state_writer import RowStateWriter
from millstream.log.connection import client_config
from millstream.log.consumer import bounds, read_range
from millstream.log.settings import LogSettings
from millstream.store.views.table import ViewTable


def test_states_are_in_the_log_and_a_new_writer_continues_with_them(
    log_settings: LogSettings, app_name: str, eventually: Any
) -> None:
    topic = f"{app_name}.windows"
    admin = AdminClient(client_config(log_settings))
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(10)
    producer = Producer(client_config(log_settings, linger_ms=0))
    table, read = ViewTable(keyed=True, stateful=True), 0

    def spark(revision: int, key: str = "x") -> None:
        value = {"w": window(10), "n": revision, "_revision": revision}
        producer.produce(topic, json.dumps(value), json.dumps([key]))
        assert producer.flush(10) == 0

    def becomes(watermark: int, *rows: tuple[int, str]) -> None:
        def is_so() -> bool:
            nonlocal read
            writer.tick({"v": watermark})
            end = bounds(log_settings, topic)[0][1]
            for record in read_range(log_settings, topic, 0, read, end):
                read = record.offset + 1
                table.apply(*record[1:6])
            return [(r["n"], r["_state"]) for r in table.rows.values()] == list(rows)

        eventually(is_so)

    views = [view(topic, window="w", keep_ms=None)]
    writer = RowStateWriter(log_settings, app_name, views)
    spark(1)
    becomes(9_000, (1, "provisional"))
    becomes(10_000, (1, "final"))
    spark(2)  # and the writer is closed before it has read it
    writer.close()
    writer = RowStateWriter(log_settings, app_name, views)
    becomes(10_000, (2, "corrected"))

    def is_written() -> bool:  # in the log, where a later writer finds it
        writer.tick({"v": 10_000})
        return bounds(log_settings, topic)[0][1] == 4

    eventually(is_written)
    writer.close()
    writer = RowStateWriter(log_settings, app_name, views)
    spark(1, "late")  # its window was final before the restart, without this row
    becomes(10_000, (2, "corrected"), (1, "corrected"))
    writer.close()


def test_tombstones_are_written_to_the_row_s_partition_and_survive_a_restart(
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
        writer = RowStateWriter(log_settings, app_name, views, clock=lambda clock=clock: clock)  # type: ignore[misc]
        expected = {(number, f'["{number}"]') for number in gone}

        def ended(
            writer: RowStateWriter = writer, expected: set[tuple[int, str]] = expected
        ) -> bool:
            writer.tick()
            found = [(p, k) for p, k, value in records() if value is None]
            assert len(found) == len(set(found)), "a row ended twice"
            return set(found) == expected

        eventually(ended)
        writer.close()
