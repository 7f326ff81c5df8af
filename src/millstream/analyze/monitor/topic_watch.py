"""Detects topics that were deleted or created again, in the background.

Kafka gives each topic an id. A topic that was created again has the same name and another id.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from millstream.errors import LogError
from millstream.log.settings import LogSettings
from millstream.log.topics import topic_ids

_log = logging.getLogger(__name__)
_EVERY = 2.0
# A broker that just restarted may not know its topics for a moment.
_MISSING_SECONDS = 10.0


class _TopicIds(NamedTuple):
    """Kafka's answer."""

    asked_at: float  # by the monotonic clock
    ids: dict[str, str]
    missing: dict[str, float]  # topic → since when


class TopicWatch(threading.Thread):
    """Asks Kafka for the ids of topics every few seconds, in a thread: Kafka may not answer."""

    def __init__(self, log: LogSettings) -> None:
        super().__init__(name="topic ids", daemon=True)
        self._log = log
        self._topics: frozenset[str] = frozenset()
        self._last = _TopicIds(0.0, {}, {})
        self._closing = threading.Event()

    def follow(self, topics: Iterable[str]) -> None:
        """Ask for these topics from now on; the first call starts the thread."""
        self._topics = frozenset(topics)
        if self._topics and self.ident is None and not self._closing.is_set():
            self.start()

    def changed(self, known: Mapping[str, str], since: float) -> dict[str, bool]:
        """The topics that are not the known ones, and whether each was created again.

        `since`: when the ids were known, by the monotonic clock. Earlier answers do not count.
        """
        last = self._last
        if last.asked_at < since:
            return {}
        found = {topic: True for topic, was in known.items() if last.ids.get(topic, was) != was}
        for topic in known:
            if last.asked_at - last.missing.get(topic, last.asked_at) > _MISSING_SECONDS:
                found[topic] = False
        return found

    def close(self) -> None:
        self._closing.set()

    def run(self) -> None:
        while not self._closing.wait(_EVERY):
            topics, now = self._topics, time.monotonic()
            try:
                ids = topic_ids(self._log, topics)
            except LogError as error:
                _log.debug("cannot ask for the ids of topics: %s", error)
                self._last = _TopicIds(now, {}, {})
                continue
            missing = {each: self._last.missing.get(each, now) for each in topics - ids.keys()}
            self._last = _TopicIds(now, ids, missing)
