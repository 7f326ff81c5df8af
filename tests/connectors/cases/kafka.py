"""A Kafka topic of another system."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import uuid
from collections.abc import Sequence

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.connectors.conformance_case import Case, event

from millstream.connectors import KafkaTopicSource


class KafkaTopicCase(Case):
    name = "kafka"
    service = "kafka"
    behind_unit = "messages"
    why_no_stall = "the client finds out by itself, after a minute"
    why_no_hold = "the log is there for that"
    flood = 20_000

    async def start(self) -> None:
        config = {"bootstrap.servers": self.fixture("broker").bootstrap}
        self._topic = f"orders-{uuid.uuid4().hex[:8]}"
        admin = AdminClient(config)
        made = admin.create_topics([NewTopic(self._topic, 1)])
        await asyncio.to_thread(made[self._topic].result)
        self._producer = Producer(config)
        await asyncio.to_thread(self._producer.list_topics, self._topic)

    async def stop(self) -> None:
        await asyncio.to_thread(self._producer.flush)

    @property
    def source(self) -> KafkaTopicSource:
        return KafkaTopicSource(self.fixture("broker").bootstrap, self._topic)

    async def send(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._producer.produce(self._topic, event(number))
        await asyncio.to_thread(self._producer.flush)

    async def pour(self, total: int) -> None:
        for number in range(total):
            self._producer.produce(self._topic, event(number, 900))
            self.poured = number + 1
        await asyncio.to_thread(self._producer.flush)

    async def drop(self) -> None:
        _cut_connections(int(self.fixture("broker").bootstrap.rpartition(":")[2]))

    async def garbage(self) -> None:
        for value in (None, b"", b"\xff\xfe", b"{", b"[1", b"y" * 200_000, b"\n\n"):
            self._producer.produce(self._topic, value, headers={"ce_id": b"\xff"})
            self._producer.produce(self._topic, value)
        await asyncio.to_thread(self._producer.flush)


def _cut_connections(port: int) -> None:
    """Break all connections of this process to a port: the client hides its sockets."""
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(number)) as connection:
                if connection.getpeername()[1:2] == (port,):
                    connection.shutdown(socket.SHUT_RDWR)
