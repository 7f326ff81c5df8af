"""All partitions of one topic, as one thread reads them."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from millstream.connectors.kafka.description import KafkaTopicSource
from millstream.connectors.reading.batcher import JSON, Batcher, MessageBatch
from millstream.connectors.reading.reconnecting_reader import ConnectionLost
from millstream.connectors.settings import SourceSettings
from millstream.log.connection import consumer_config
from millstream.log.settings import LogSettings

T = TypeVar("T")

_PATIENCE_SECONDS = 10.0
_STEP_SECONDS = 0.5  # of waiting, after which it looks whether it should end
_LOOK_SECONDS = 30.0  # how often to look for new partitions
_COUNT_SECONDS = 0.5  # how often to count what is still to be read
_ASK_SECONDS = 2.0  # how often to ask Kafka for it, while nothing is read that would tell
_BATCH = 1000
_ATTRIBUTES = ("id", "source", "type", "time", "subject")  # of CloudEvents' Kafka binding
_STRUCTURED = "application/cloudevents+json"
_SECRET = ("password", "secret", "pem", "token", "config", "key")


class TopicConsumer:
    """Reads from given offsets on, which it moves; nothing is committed to Kafka."""

    def __init__(
        self,
        source: KafkaTopicSource,
        settings: SourceSettings,
        offsets: dict[int, int],
        ending: threading.Event,
    ) -> None:
        self.behind: int | None = None  # messages that are still to be read
        self.oversized = 0  # messages that were too large to take
        self._source = source
        self._settings = settings
        self._offsets = offsets  # the next of each partition
        self._ends: dict[int, int] = {}  # of each partition, as far as known
        self._ending = ending
        self._trouble = ""  # what the client told of a cluster that is not there
        self._look_at = self._count_at = 0.0
        try:
            self._kafka = Consumer(self._config())
        except KafkaException as error:
            raise self._lost(error) from None

    def __enter__(self) -> TopicConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self._kafka.close()

    def open(self) -> int:
        """Find the partitions and where to go on; how many messages are gone that were not read."""
        partitions = self._ask(self._partitions)
        missed = 0
        begins_anew = not self._offsets
        for partition in partitions:
            if self._ending.is_set():
                return 0
            low, high = self._ask(partial(self._bounds, partition))
            self._ends[partition] = high
            first = high if begins_anew and self._source.start == "end" else low
            offset = self._offsets.get(partition, first)
            missed += max(0, low - offset)
            # Beyond the end: the topic was made anew.
            self._offsets[partition] = low if offset > high else max(low, offset)
        self._assign(partitions)
        self._look_at = time.monotonic() + _LOOK_SECONDS
        return missed

    def read(self, seconds: float) -> list[MessageBatch]:
        """What there is now, waiting for it for so long; Lost when Kafka is."""
        if self._trouble:  # not sooner: what came before it was still to be handed over
            raise ConnectionLost(self._trouble)
        # consume() alone would wait for a full batch: poll for the first, then take what is there.
        first = self._kafka.poll(seconds)
        batcher = Batcher(self._settings)
        if first is not None:
            for message in (first, *self._kafka.consume(_BATCH - 1, 0)):
                self._add(batcher, message)
        self.oversized += batcher.oversized
        self._look_around()
        return batcher.drain()

    def count(self) -> None:
        """Ask, now and then, how much there is to be read; for times when nothing is."""
        if time.monotonic() < self._count_at:
            return
        self._count_at = time.monotonic() + _ASK_SECONDS
        with contextlib.suppress(KafkaException):  # then it is as much as it was
            for partition in self._ends:
                self._ends[partition] = self._bounds(partition, _STEP_SECONDS)[1]
        self.behind = sum(self._ends[each] - self._offsets[each] for each in self._ends)

    def _add(self, batcher: Batcher, message: Message) -> None:
        if (error := message.error()) is not None:
            self._trouble = self._plain(error.str())
            return
        self._offsets[message.partition() or 0] = (message.offset() or 0) + 1
        headers = {name: _text(value) for name, value in dict(message.headers() or ()).items()}
        batcher.add(
            message.value() or b"",
            bookmark=json.dumps(self._offsets).encode(),
            attributes=_attributes(headers) if headers else None,
            content_type=_content_type(headers.get("content-type", "")),
        )

    def _look_around(self) -> None:
        now = time.monotonic()
        if now >= self._count_at:
            self._count_at = now + _COUNT_SECONDS
            self.behind = sum(self._left(partition) for partition in self._ends)
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            try:
                found = self._partitions(_STEP_SECONDS)
            except KafkaException:
                return
            if new := [partition for partition in found if partition not in self._ends]:
                for partition in new:
                    self._offsets.setdefault(partition, 0)
                    self._ends[partition] = 0
                self._assign(new)

    def _left(self, partition: int) -> int:
        place = TopicPartition(self._source.topic, partition)
        known = self._kafka.get_watermark_offsets(place, cached=True)
        if known is not None and known[1] >= 0:
            self._ends[partition] = known[1]
        return max(0, self._ends[partition] - self._offsets[partition])

    def _assign(self, partitions: list[int]) -> None:
        self._kafka.incremental_assign(
            [TopicPartition(self._source.topic, each, self._offsets[each]) for each in partitions]
        )

    def _bounds(self, partition: int, seconds: float) -> tuple[int, int]:
        place = TopicPartition(self._source.topic, partition)
        found: tuple[int, int] | None = self._kafka.get_watermark_offsets(place, seconds)
        if found is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return found

    def _partitions(self, seconds: float) -> list[int]:
        topic = self._kafka.list_topics(self._source.topic, seconds).topics[self._source.topic]
        if topic.error is not None:
            raise KafkaException(topic.error)
        return sorted(topic.partitions)

    def _ask(self, question: Callable[[float], T]) -> T:
        """Ask Kafka, in steps that end soon when the reader is to end; Lost if it never answers."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return question(_STEP_SECONDS)
            except KafkaException as error:
                if not self._ending.is_set() and _is_passing(error):
                    self._kafka.poll(0)  # the client tells its troubles in here
                    if not self._trouble and time.monotonic() < deadline:
                        continue
                raise self._lost(error) from None

    def _config(self) -> dict[str, Any]:
        log = LogSettings(bootstrap=self._source.bootstrap, security=self._source.security)
        config = consumer_config(
            log,
            group_id="millstream-source",
            auto_offset_reset="error",
            fetch_max_bytes=8 << 20,
        )
        return {**config, "error_cb": self._heed}

    def _heed(self, error: KafkaError) -> None:
        if error.code() in (
            KafkaError._ALL_BROKERS_DOWN,
            KafkaError._AUTHENTICATION,
            KafkaError._SSL,
        ):
            self._trouble = self._plain(error.str())

    def _lost(self, error: KafkaException) -> ConnectionLost:
        return ConnectionLost(self._trouble or self._plain(error.args[0].str()))

    def _plain(self, text: str) -> str:
        """The client's words, without what is secret in our settings."""
        for name, value in self._source.security.items():
            if value and any(word in name for word in _SECRET):
                text = text.replace(value, "…")
        return text


def decode_bookmark(bookmark: bytes | None) -> dict[int, int]:
    """The next offset of each partition that a bookmark notes."""
    try:
        return {int(key): int(value) for key, value in json.loads(bookmark or b"{}").items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def _is_passing(error: KafkaException) -> bool:
    return error.args[0].code() in (
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    )


def _attributes(headers: dict[str, str]) -> dict[str, str] | None:
    found = {name: headers[f"ce_{name}"] for name in _ATTRIBUTES if headers.get(f"ce_{name}")}
    return found if "id" in found else None


def _content_type(written: str) -> str:
    # Any other promise about the value is left to the check of the value itself.
    media = written.partition(";")[0].strip().lower()
    return _STRUCTURED if media == _STRUCTURED else JSON


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
