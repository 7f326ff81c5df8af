"""Limits the record size of a topic."""

from __future__ import annotations

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from millstream.log.connection import admin
from millstream.log.settings import LogSettings


def limit_record_size(log: LogSettings, topic: str, size: int) -> None:
    """Let Kafka refuse larger records, and all others of the same request."""
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    client = admin(log)  # held until the answer is there
    for answer in client.incremental_alter_configs([change]).values():
        answer.result(30)
