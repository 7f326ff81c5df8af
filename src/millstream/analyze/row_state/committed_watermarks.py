"""Stores in Kafka up to which watermark rows may have been made final."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition

from millstream.analyze.row_state.row_updates import CommittedWatermark
from millstream.log.connection import client_config
from millstream.log.consumer import Partition, bounds
from millstream.log.settings import LogSettings
from millstream.log.topics import topic_ids

_SECONDS = 5.0


class CommittedWatermarks:
    """Watermarks, stored as offsets of a consumer group that nobody joins.

    A stored watermark names the topic's id: a topic that was created again has none.
    """

    def __init__(self, log: LogSettings, app: str, topics: Iterable[str]) -> None:
        self.ids = topic_ids(log, topics)
        # Kafka stores the group's name: it stays `closer`.
        config = client_config(log, group_id=f"{app}.closer", enable_auto_commit=False)
        self._consumer = Consumer(config)

    def read(self, partitions: Iterable[Partition]) -> dict[Partition, CommittedWatermark]:
        asked = [TopicPartition(*each) for each in partitions]
        found = {}
        for each in self._consumer.committed(asked, _SECONDS):
            topic_id, _, until = (each.metadata or "").partition(" ")
            if each.offset >= 0 and until and topic_id == self.ids.get(each.topic):
                found[each.topic, each.partition] = CommittedWatermark(each.offset, int(until))
        return found

    def write(self, watermarks: Mapping[Partition, CommittedWatermark]) -> None:
        """Return when Kafka has stored them; KafkaException if it has not."""
        offsets = [
            TopicPartition(*at, each.offset, f"{self.ids.get(at[0], '')} {each.until}")
            for at, each in watermarks.items()
        ]
        for offset in self._consumer.commit(offsets=offsets, asynchronous=False) or ():
            if offset.error is not None:
                raise KafkaException(offset.error)

    def close(self) -> None:
        self._consumer.close()


def final_until(log: LogSettings, app: str, topic: str) -> int:
    """The end of the latest window whose rows were made final in a topic; 0: none. Blocks."""
    watermarks = CommittedWatermarks(log, app, [topic])
    try:
        found = watermarks.read((topic, partition) for partition in bounds(log, topic))
        return max((each.until for each in found.values()), default=0)
    finally:
        watermarks.close()
