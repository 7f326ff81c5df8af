"""The key that a cluster's collectors sign receipts with: made once, shared through the log."""

from __future__ import annotations

import secrets
import uuid

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from millstream.errors import LogError
from millstream.log.connection import client_config
from millstream.log.consumer import bounds, read_range
from millstream.log.settings import LogSettings
from millstream.log.topics import keys_topic

_BYTES = 32
_SECONDS = 30.0


def cluster_key(log: LogSettings, app: str) -> bytes:
    """The cluster's key; the first collector makes it. Blocks; LogError if Kafka is away.

    Two first collectors at the same moment both write one. Whichever is first in the topic counts,
    for both: so nobody uses a key before it has read it there.
    """
    topic = keys_topic(app)
    key = _first(log, topic)
    if key is None:
        _write(log, topic, secrets.token_bytes(_BYTES))
        key = _first(log, topic)
    if key is None:
        raise LogError(
            f"cannot share a key through topic {topic}: what was written to it is not there",
            remedy="see that the topic is compacted, and that nothing deletes its records",
        )
    return key


def _first(log: LogSettings, topic: str) -> bytes | None:
    first, end = bounds(log, topic, _SECONDS)[0]
    if first == end:
        return None
    for record in read_range(log, topic, 0, first, end, patience=_SECONDS):
        if record.value is not None and len(record.value) == _BYTES:
            return record.value
    return None


def _write(log: LogSettings, topic: str, key: bytes) -> None:
    failures: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(error.str())

    producer = Producer(client_config(log, acks="all", delivery_timeout_ms=round(_SECONDS * 1000)))
    try:
        # A record key of its own: compaction keeps the newest of each, and it is the oldest of all
        # that counts.
        producer.produce(topic, key, uuid.uuid4().hex, on_delivery=delivered)
        waiting = producer.flush(_SECONDS + 1)
    except KafkaException as error:
        raise LogError(f"cannot write to topic {topic}: {error.args[0].str()}") from error
    if failures or waiting:
        why = failures[0] if failures else f"no answer in {_SECONDS:g} s"
        raise LogError(f"cannot write to topic {topic}: {why}", remedy="see that Kafka runs")
