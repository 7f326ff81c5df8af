"""A few events a second of each stream, from the end of its topic, for its watch.

What a busy stream has beyond that is skipped, not read: the cost does not grow with the traffic.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaException, TopicPartition

from millstream.analyze.monitor.drift.detector import DriftDetector
from millstream.log.connection import consumer_config
from millstream.log.settings import LogSettings
from millstream.log.topic_names import stream_topic
from millstream.pipeline.model import Stream
from millstream.values.clock import now_ms
from millstream.values.report import FieldDrift

_log = logging.getLogger(__name__)
_EVERY = 1.0
_PATIENCE = 5.0


class DriftMonitor:
    """A thread that watches streams until `close`. Kafka being away only delays it."""

    def __init__(
        self, app: str, streams: Iterable[Stream], log: LogSettings, a_second: int
    ) -> None:
        self._watches = {
            stream_topic(app, stream.name): DriftDetector(stream) for stream in streams
        }
        self._log, self._a_second = log, a_second
        self._next: dict[tuple[str, int], int] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drift", daemon=True)
        if self._watches and a_second:
            self._thread.start()

    def shifted(self) -> list[FieldDrift]:
        """What is of another shape than lately, over all streams."""
        return [drift for watch in self._watches.values() for drift in watch.shifted()]

    def close(self) -> None:
        """End the watching; returns when its thread has ended."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(2 * _PATIENCE)

    def _run(self) -> None:
        consumer = Consumer(consumer_config(self._log, auto_offset_reset="latest"))
        try:
            while not self._closing.wait(_EVERY):
                try:
                    self._look(consumer)
                except KafkaException as error:
                    _log.debug("drift is not watched for a moment: %s", error.args[0].str())
        finally:
            consumer.close()

    def _look(self, consumer: Consumer) -> None:
        wanted, ends = self._newest(consumer)
        if not wanted:
            return
        consumer.assign(wanted)
        values: dict[str, list[bytes | None]] = {}
        deadline = time.monotonic() + _PATIENCE
        while ends and time.monotonic() < deadline and not self._closing.is_set():
            for message in consumer.consume(self._a_second, 0.1):
                if message.error() is not None:
                    continue
                place = (message.topic() or "", message.partition() or 0)
                offset = message.offset() or 0
                if offset < ends.get(place, 0):
                    values.setdefault(place[0], []).append(message.value())
                self._next[place] = offset + 1
                if offset + 1 >= ends.get(place, 0):
                    ends.pop(place, None)
        consumer.unassign()
        now = now_ms()
        for topic, found in values.items():
            for drift in self._watches[topic].take(found, now):
                _log.warning(
                    "field %s of stream %s has shifted: %s; before: %s",
                    *(drift.field, drift.stream, drift.now, drift.before),
                )

    def _newest(
        self, consumer: Consumer
    ) -> tuple[list[TopicPartition], dict[tuple[str, int], int]]:
        """Where to read from, and up to where, so that no stream gives more than its share."""
        wanted, ends = [], {}
        known = consumer.list_topics(timeout=_PATIENCE).topics
        for topic in self._watches:
            partitions = known[topic].partitions if topic in known else {}
            for partition in partitions:
                place = (topic, partition)
                low, high = consumer.get_watermark_offsets(
                    TopicPartition(*place), timeout=_PATIENCE
                )
                share = max(1, self._a_second // len(partitions))
                # What was there before we began is as good a reference as any.
                start = max(low, high - share, self._next.get(place, 0))
                if start < high:
                    wanted.append(TopicPartition(*place, start))
                    ends[place] = high
        return wanted, ends
