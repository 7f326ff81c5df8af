"""Writes a few records and waits for them, without an event loop."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from millstream.errors import LogError
from millstream.log.connection import client_config
from millstream.log.settings import LogSettings


def write(
    log: LogSettings, topic: str, records: Mapping[str, bytes | None], seconds: float
) -> None:
    """Write values by their keys. Blocks until the in-sync replicas have all of them.

    LogError if that takes longer than `seconds`; some may still be in the log.
    """
    failures: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(error.str())

    producer = Producer(client_config(log, acks="all", delivery_timeout_ms=round(seconds * 1000)))
    try:
        for key, value in records.items():
            producer.produce(topic, value, key, on_delivery=delivered)
        waiting = producer.flush(seconds + 1)
    except KafkaException as error:
        raise LogError(f"cannot write to topic {topic}: {error.args[0].str()}") from error
    if failures or waiting:
        why = failures[0] if failures else f"no answer in {seconds:g} s"
        raise LogError(f"cannot write to topic {topic}: {why}", remedy="check that Kafka runs")
