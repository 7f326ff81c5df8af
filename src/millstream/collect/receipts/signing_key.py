"""The key that a cluster's collectors sign receipts with: made once, shared through the log."""

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
    """The cluster's key; the first collector makes it. Blocks; LogError if Kafka is away.

    Two first collectors at the same moment both write one. Whichever is first in the topic counts,
    for both: so nobody uses a key before it has read it there.
    """
    topic = keys_topic(app)
    key = _first(log, topic)
    if key is None:
        # A record key of its own: compaction keeps the newest of each, and it is the oldest of all
        # that counts.
        write(log, topic, {uuid.uuid4().hex: secrets.token_bytes(_BYTES)}, _SECONDS)
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
