"""Copies events on which a view fails into their streams' late topics, exactly once."""

from __future__ import annotations

import json
from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from millstream.errors import LogError
from millstream.log.connection import client_config
from millstream.log.consumer import read_range
from millstream.log.settings import LogSettings
from millstream.log.topic_names import late_topic, stream_topic
from millstream.pipeline.app import App
from millstream.values.report import BrokenEvent

_TIMEOUT = 30.0  # seconds


class DeadLetterWriter:
    """Writes the dead letters of one generation of a view."""

    def __init__(self, app: App, log: LogSettings, view: str, generation: str) -> None:
        self._log = log
        self._view = view
        self._name = f"{app.name}.broken.{view}"
        self._group = f"{self._name}.{generation}"
        self._late = {stream_topic(app.name, s): late_topic(app.name, s) for s in app.streams}

    def write(self, broken: Iterable[BrokenEvent]) -> None:
        """Copy those events that are not copied yet, with the reason and their position.

        Rows of other views are not copied. The transaction also commits offsets, which tell what
        was copied before: events are found in order per partition. LogError if Kafka fails. Blocks.
        """
        events = [event for event in broken if event.topic in self._late]
        if not events:
            return
        consumer = Consumer(client_config(self._log, group_id=self._group))
        try:
            partitions = {(event.topic, event.partition) for event in events}
            asked = [TopicPartition(*partition) for partition in sorted(partitions)]
            done = {(p.topic, p.partition): p.offset for p in consumer.committed(asked, _TIMEOUT)}
            new = [e for e in events if e.offset >= done[e.topic, e.partition]]
            if new:
                self._copy(new, consumer)
        except KafkaException as error:
            raise LogError(
                f"cannot set an event of view {self._view} aside: {error.args[0].str()}"
            ) from error
        finally:
            consumer.close()

    def _copy(self, events: list[BrokenEvent], consumer: Consumer) -> None:
        producer = Producer(client_config(self._log, transactional_id=self._name))
        producer.init_transactions(_TIMEOUT)
        producer.begin_transaction()
        ends: dict[tuple[str, int], int] = {}
        for event in events:
            at, end = (event.topic, event.partition), event.offset + 1
            ends[at] = max(ends.get(at, 0), end)
            for record in read_range(self._log, *at, event.offset, end):
                headers = [*record.headers, *self._headers(event)]
                producer.produce(
                    self._late[event.topic],
                    record.value,
                    record.key,
                    timestamp=record.timestamp,
                    headers=headers,  # type: ignore[arg-type]
                )
        copied = [TopicPartition(*at, end) for at, end in ends.items()]
        group = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction(copied, group, _TIMEOUT)
        producer.commit_transaction(_TIMEOUT)

    def _headers(self, event: BrokenEvent) -> list[tuple[str, bytes]]:
        values = {
            "late_reason": "broken",
            "late_views": json.dumps({self._view: []}),
            "late_position": event.position,
            "late_error": event.reason,
        }
        return [(name, text.encode()) for name, text in values.items()]
