"""Consumes all partitions of one topic, in one thread."""

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

_ANSWER_SECONDS = 10.0
_STEP_SECONDS = 0.5  # of waiting between two checks whether the reader should end
_REFRESH_SECONDS = 30.0  # how often to look for new partitions
_LAG_SECONDS = 0.5  # how often to compute the lag
_FETCH_LAG_SECONDS = 2.0  # how often to request the lag from Kafka, while nothing is read
_BATCH = 1000
_ATTRIBUTES = ("id", "source", "type", "time", "subject")  # of CloudEvents' Kafka binding
_STRUCTURED = "application/cloudevents+json"
_SECRET = ("password", "secret", "pem", "token", "config", "key")


class TopicConsumer:
    """Reads from the given offsets on, and advances them; it commits nothing to Kafka."""

    def __init__(
        self,
        source: KafkaTopicSource,
        settings: SourceSettings,
        offsets: dict[int, int],
        ending: threading.Event,
    ) -> None:
        self.behind: int | None = None  # messages still to be read
        self.oversized = 0  # messages that were too large, and are dropped
        self._source = source
        self._settings = settings
        self._offsets = offsets  # the next offset to read, by partition
        self._ends: dict[int, int] = {}  # the end of each partition, as far as known
        self._ending = ending
        self._error = ""  # the error of a cluster that cannot be reached
        self._refresh_at = self._lag_at = 0.0
        try:
            self._kafka = Consumer(self._config())
        except KafkaException as error:
            raise self._lost(error) from None

    def __enter__(self) -> TopicConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self._kafka.close()

    def open(self) -> int:
        """Find the partitions and their start offsets; returns how many unread messages expired."""
        partitions = self._retry(self._partitions)
        missed = 0
        is_first_start = not self._offsets
        for partition in partitions:
            if self._ending.is_set():
                return 0
            low, high = self._retry(partial(self._bounds, partition))
            self._ends[partition] = high
            first = high if is_first_start and self._source.start == "end" else low
            offset = self._offsets.get(partition, first)
            missed += max(0, low - offset)
            # Beyond the end: the topic was deleted and created again.
            self._offsets[partition] = low if offset > high else max(low, offset)
        self._assign(partitions)
        self._refresh_at = time.monotonic() + _REFRESH_SECONDS
        return missed

    def read(self, seconds: float) -> list[MessageBatch]:
        """The available messages, after waiting at most so long; ConnectionLost if Kafka is."""
        if self._error:  # only now: the messages before the error had to be offered first
            raise ConnectionLost(self._error)
        # consume() alone waits for a full batch: poll for the first, then consume the rest.
        first = self._kafka.poll(seconds)
        batcher = Batcher(self._settings)
        if first is not None:
            for message in (first, *self._kafka.consume(_BATCH - 1, 0)):
                self._add(batcher, message)
        self.oversized += batcher.oversized
        self._refresh()
        return batcher.drain()

    def update_lag(self) -> None:
        """Request the lag from Kafka now and then, for times when nothing is read."""
        if time.monotonic() < self._lag_at:
            return
        self._lag_at = time.monotonic() + _FETCH_LAG_SECONDS
        with contextlib.suppress(KafkaException):  # then the lag stays as it was
            for partition in self._ends:
                self._ends[partition] = self._bounds(partition, _STEP_SECONDS)[1]
        self.behind = sum(self._ends[each] - self._offsets[each] for each in self._ends)

    def _add(self, batcher: Batcher, message: Message) -> None:
        if (error := message.error()) is not None:
            self._error = self._without_secrets(error.str())
            return
        self._offsets[message.partition() or 0] = (message.offset() or 0) + 1
        headers = {name: _text(value) for name, value in dict(message.headers() or ()).items()}
        batcher.add(
            message.value() or b"",
            bookmark=json.dumps(self._offsets).encode(),
            attributes=_attributes(headers) if headers else None,
            content_type=_content_type(headers.get("content-type", "")),
        )

    def _refresh(self) -> None:
        now = time.monotonic()
        if now >= self._lag_at:
            self._lag_at = now + _LAG_SECONDS
            self.behind = sum(self._lag(partition) for partition in self._ends)
        if now >= self._refresh_at:
            self._refresh_at = now + _REFRESH_SECONDS
            try:
                found = self._partitions(_STEP_SECONDS)
            except KafkaException:
                return
            if new := [partition for partition in found if partition not in self._ends]:
                for partition in new:
                    self._offsets.setdefault(partition, 0)
                    self._ends[partition] = 0
                self._assign(new)

    def _lag(self, partition: int) -> int:
        at = TopicPartition(self._source.topic, partition)
        known = self._kafka.get_watermark_offsets(at, cached=True)
        if known is not None and known[1] >= 0:
            self._ends[partition] = known[1]
        return max(0, self._ends[partition] - self._offsets[partition])

    def _assign(self, partitions: list[int]) -> None:
        self._kafka.incremental_assign(
            [TopicPartition(self._source.topic, each, self._offsets[each]) for each in partitions]
        )

    def _bounds(self, partition: int, seconds: float) -> tuple[int, int]:
        at = TopicPartition(self._source.topic, partition)
        found: tuple[int, int] | None = self._kafka.get_watermark_offsets(at, seconds)
        if found is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return found

    def _partitions(self, seconds: float) -> list[int]:
        topic = self._kafka.list_topics(self._source.topic, seconds).topics[self._source.topic]
        if topic.error is not None:
            raise KafkaException(topic.error)
        return sorted(topic.partitions)

    def _retry(self, request: Callable[[float], T]) -> T:
        """The answer to a request; ConnectionLost if Kafka does not answer in time.

        It waits in short steps, so that it returns soon when the reader should end.
        """
        deadline = time.monotonic() + _ANSWER_SECONDS
        while True:
            try:
                return request(_STEP_SECONDS)
            except KafkaException as error:
                if not self._ending.is_set() and _is_transient(error):
                    self._kafka.poll(0)  # the client reports its errors in here
                    if not self._error and time.monotonic() < deadline:
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
        return {**config, "error_cb": self._note_error}

    def _note_error(self, error: KafkaError) -> None:
        if error.code() in (
            KafkaError._ALL_BROKERS_DOWN,
            KafkaError._AUTHENTICATION,
            KafkaError._SSL,
        ):
            self._error = self._without_secrets(error.str())

    def _lost(self, error: KafkaException) -> ConnectionLost:
        return ConnectionLost(self._error or self._without_secrets(error.args[0].str()))

    def _without_secrets(self, text: str) -> str:
        """The client's message, without the secrets of our settings."""
        for name, value in self._source.security.items():
            if value and any(word in name for word in _SECRET):
                text = text.replace(value, "…")
        return text


def decode_bookmark(bookmark: bytes | None) -> dict[int, int]:
    """The next offset of each partition; none for a bookmark of another kind of source."""
    try:
        return {int(key): int(value) for key, value in json.loads(bookmark or b"{}").items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def _is_transient(error: KafkaException) -> bool:
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
    # Any other content type is ignored: the value itself is validated.
    media = written.partition(";")[0].strip().lower()
    return _STRUCTURED if media == _STRUCTURED else JSON


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
