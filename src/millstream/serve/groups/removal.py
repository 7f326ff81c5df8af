"""Removes what Kafka stores for a group: its committed offsets, and its undelivered messages."""

from __future__ import annotations

import logging
import time

from confluent_kafka import KafkaError, KafkaException

from millstream.log.connection import admin
from millstream.log.settings import LogSettings
from millstream.log.topic_names import undelivered_topic
from millstream.log.topics import delete_topics
from millstream.serve.groups.group import group_id

_log = logging.getLogger(__name__)
_SECONDS = 10.0
_POLL_SECONDS = 0.1


def delete_group(log: LogSettings, app: str, name: str) -> None:
    """Delete both, once every server has left the group. Blocks.

    A server that does not leave in time keeps the offsets alive. They are harmless: a new group of
    that name has another generation, and does not use them.
    """
    client, group = admin(log), group_id(app, name)
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            client.delete_consumer_groups([group])[group].result(_SECONDS)
            break
        except KafkaException as failure:
            code = failure.args[0].code()
            if code == KafkaError.GROUP_ID_NOT_FOUND:
                break
            if code != KafkaError.NON_EMPTY_GROUP or time.monotonic() > deadline:
                _log.warning("group %s: its offsets stay: %s", name, failure.args[0].str())
                break
            time.sleep(_POLL_SECONDS)
    delete_topics(log, [undelivered_topic(app, name)])
