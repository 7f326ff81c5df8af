"""Sources that can resume, through a collector into Kafka; both sides are killed."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.connectors.killable_collector import at_rest, killable
from tests.connectors.mosquitto import Mosquitto
from tests.connectors.postgres_server import PostgresServer
from tests.wait_until import until

from millstream.log.settings import LogSettings

_CLIENT = "millstream-events"


def put(folder: Path, name: str, numbers: range) -> None:
    """Create a file atomically."""
    unfinished = folder / f".{name}"
    unfinished.write_text("".join(f'{{"n": {number}}}\n' for number in numbers))
    unfinished.rename(folder / name)


async def test_each_file_is_in_the_log_once_and_in_order(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    put(folder, "1.ndjson", range(20_000))  # enough for many messages
    source = {"kind": "directory", "path": str(folder), "done": "delete"}
    source |= {"settle": "", "poll": "20 ms"}
    async with killable(app_name, log_settings, tmp_path / "home", source) as collector:
        await collector.killed_at(3_000)
        for file in range(20):
            put(folder, f"2-{file:02}.ndjson", range(20_000 + 50 * file, 20_050 + 50 * file))
        await collector.killed_at(5_000)
        await collector.has(21_000)
        # Files are removed only when their events are stored; in the end all are removed.
        await until(lambda: not list(folder.iterdir()))
        assert collector.numbers() == list(range(21_000))


async def test_each_record_of_another_topic_is_in_the_log_once_and_in_order(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    config: dict[str, str | int | float | bool] = {"bootstrap.servers": log_settings.bootstrap}
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    admin = AdminClient(config)
    await asyncio.to_thread(admin.create_topics([NewTopic(topic, 1)])[topic].result)
    producer = Producer(config)

    def produce(numbers: range) -> None:
        for number in numbers:
            producer.produce(topic, json.dumps({"n": number}))
        producer.flush()

    await asyncio.to_thread(produce, range(20_000))
    source = {"kind": "kafka", "bootstrap": str(log_settings.bootstrap), "topic": topic}
    async with killable(app_name, log_settings, tmp_path, source) as collector:
        await collector.killed_at(1, 3_000)
        await asyncio.to_thread(produce, range(20_000, 20_500))
        await collector.has(20_500)
        assert collector.numbers() == list(range(20_500))


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    broker = Mosquitto(tmp_path)
    broker.start()
    yield broker
    broker.stop()


async def test_no_message_that_a_broker_accepted_is_lost(
    app_name: str, log_settings: LogSettings, tmp_path: Path, mosquitto: Mosquitto
) -> None:
    source = {"kind": "mqtt", "url": mosquitto.url, "topic": "t/#", "receive_maximum": "20"}

    async def publish(numbers: range) -> None:
        await mosquitto.publish("t/1", [b'{"n": %d}' % number for number in numbers])

    async with killable(app_name, log_settings, tmp_path / "home", source) as collector:
        await until(lambda: mosquitto.has_subscribed(_CLIENT))
        publishing = asyncio.create_task(publish(range(3_000)))
        await collector.killed_at(1, 500)
        await publishing
        await mosquitto.save()  # a killed broker loses what it stored later
        mosquitto.kill()
        mosquitto.start()
        await publish(range(3_000, 3_100))
        await collector.until(lambda: collector.newest()["n"] == 3_099)
        times = Counter(collector.numbers())
        assert set(times) == set(range(3_100))
        # Messages in flight when a side died are resent; MQTT cannot mark them as duplicates.
        assert sum(times.values()) - len(times) < 1_000


async def test_each_change_is_in_the_log_once_whichever_side_is_killed(
    app_name: str, log_settings: LogSettings, tmp_path: Path, postgres: PostgresServer
) -> None:
    table = f"t{uuid.uuid4().hex[:12]}"
    await postgres.sql(
        f"CREATE TABLE {table} (n int PRIMARY KEY, v int)",
        f"INSERT INTO {table} SELECT n, 0 FROM generate_series(0, 4999) n",
    )
    source = {"kind": "postgres", "url": postgres.url, "tables": table}
    source |= {"slot": table, "publication": table}
    schema = "op STRING NOT NULL, key STRING, after STRUCT<n: LONG, v: LONG>"
    home = tmp_path / "home"
    async with killable(app_name, log_settings, home, source, schema=schema) as collector:

        def changes() -> list[tuple[str, int, int]]:
            found = [json.loads(record.value or b"") for record in collector.logged()]
            return [
                (each["op"], each["after"]["n"], each["after"]["v"])
                for each in found
                if each["after"]
            ]

        await collector.killed_at(1)  # during the snapshot, or just after it
        await collector.until(lambda: collector.newest()["key"] == "[4999]")
        await postgres.sql(f"INSERT INTO {table} SELECT n, 0 FROM generate_series(5000, 9999) n")
        await collector.killed_at(500)
        await asyncio.to_thread(postgres.kill)
        await asyncio.to_thread(postgres.start)
        await postgres.sql(f"UPDATE {table} SET v = 1 WHERE n < 2000")
        await collector.killed_at(100)
        await collector.until(lambda: (collector.newest()["after"] or {}).get("v") == 1)
        await collector.until(lambda: collector.newest()["key"] == "[1999]")
        await at_rest(collector.count)
        streamed = [change for change in changes() if change[0] != "snapshot"]
        assert streamed == [
            *(("insert", n, 0) for n in range(5000, 10_000)),
            *(("update", n, 1) for n in range(2000)),
        ]
    await postgres.forget(table)
    await postgres.sql(f"DROP TABLE {table}")
