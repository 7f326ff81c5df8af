"""The key that all servers of a cluster share through the log.

Collectors sign receipts with it. Servers derive from it the key of tickets.
"""

from __future__ import annotations

import secrets
import uuid

from millstream.errors import LogError
from millstream.log.consumer import bounds, read_range
from millstream.log.producing.write import write
from millstream.log.settings import LogSettings
from millstream.log.topic_names import keys_topic

_BYTES = 32
_SECONDS = 30.0


def cluster_key(log: LogSettings, app: str) -> bytes:
    """The cluster's key; the first process creates it. Blocks; LogError if Kafka is away.

    Two processes that start at the same time may both write a key. The first one in the topic
    counts, so a key is used only after it was read from there.
    """
    topic = keys_topic(app)
    key = _first(log, topic)
    if key is None:
        # Each record has its own key: compaction keeps only the newest of a key, and the oldest
        # record counts.
        write(log, topic, {uuid.uuid4().hex: secrets.token_bytes(_BYTES)}, _SECONDS)
        key = _first(log, topic)
    if key is None:
        raise LogError(
            f"cannot share a key through topic {topic}: the written record is not there",
            remedy="make sure that the topic is compacted, and that nothing deletes its records",
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
