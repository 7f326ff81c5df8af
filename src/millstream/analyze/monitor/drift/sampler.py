"""Samples a few events a second of each stream, from the end of its topic, to detect drift.

The other events of a busy stream are skipped, not read: the cost does not grow with the traffic.
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
    """A thread that samples streams until `close`. If Kafka does not answer, it tries again."""

    def __init__(
        self, app: str, streams: Iterable[Stream], log: LogSettings, per_second: int
    ) -> None:
        self._detectors = {
            stream_topic(app, stream.name): DriftDetector(stream) for stream in streams
        }
        self._log, self._per_second = log, per_second
        self._next: dict[tuple[str, int], int] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drift", daemon=True)
        if self._detectors and per_second:
            self._thread.start()

    def shifted(self) -> list[FieldDrift]:
        """The fields of all streams whose values have shifted."""
        return [drift for detector in self._detectors.values() for drift in detector.shifted()]

    def close(self) -> None:
        """End the thread, and return when it has ended."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(2 * _PATIENCE)

    def _run(self) -> None:
        consumer = Consumer(consumer_config(self._log, auto_offset_reset="latest"))
        try:
            while not self._closing.wait(_EVERY):
                try:
                    self._sample(consumer)
                except KafkaException as error:
                    _log.debug("cannot sample streams for drift: %s", error.args[0].str())
        finally:
            consumer.close()

    def _sample(self, consumer: Consumer) -> None:
        wanted, ends = self._offsets(consumer)
        if not wanted:
            return
        consumer.assign(wanted)
        values: dict[str, list[bytes | None]] = {}
        deadline = time.monotonic() + _PATIENCE
        while ends and time.monotonic() < deadline and not self._closing.is_set():
            for message in consumer.consume(self._per_second, 0.1):
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
            for drift in self._detectors[topic].observe(found, now):
                _log.warning(
                    "field %s of stream %s has shifted: %s; before: %s",
                    *(drift.field, drift.stream, drift.now, drift.before),
                )

    def _offsets(
        self, consumer: Consumer
    ) -> tuple[list[TopicPartition], dict[tuple[str, int], int]]:
        """Start and end offsets of the sample: no stream has more than its share."""
        wanted, ends = [], {}
        known = consumer.list_topics(timeout=_PATIENCE).topics
        for topic in self._detectors:
            partitions = known[topic].partitions if topic in known else {}
            for partition in partitions:
                place = (topic, partition)
                low, high = consumer.get_watermark_offsets(
                    TopicPartition(*place), timeout=_PATIENCE
                )
                share = max(1, self._per_second // len(partitions))
                # The sample may include events from before the start: they are as good a reference.
                start = max(low, high - share, self._next.get(place, 0))
                if start < high:
                    wanted.append(TopicPartition(*place, start))
                    ends[place] = high
        return wanted, ends
