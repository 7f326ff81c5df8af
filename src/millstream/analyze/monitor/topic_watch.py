"""Whether topics are still the ones that they were: asked every few seconds, in the background.

Kafka gives each topic an id. One that was deleted and made again has the same name and another id.
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
# A broker that has just come back may not know its topics for a moment.
_GONE_AFTER = 10.0


class _Look(NamedTuple):
    """What Kafka said."""

    asked_at: float  # by the monotonic clock
    ids: dict[str, str]
    missing: dict[str, float]  # topic → since when


class TopicWatch(threading.Thread):
    """Asks Kafka for the ids of topics, in a thread of its own: Kafka may be away."""

    def __init__(self, log: LogSettings) -> None:
        super().__init__(name="topic ids", daemon=True)
        self._log = log
        self._topics: frozenset[str] = frozenset()
        self._last = _Look(0.0, {}, {})
        self._is_over = threading.Event()

    def follow(self, topics: Iterable[str]) -> None:
        """The topics to ask for from now on; the first call starts the thread."""
        self._topics = frozenset(topics)
        if self._topics and self.ident is None and not self._is_over.is_set():
            self.start()

    def changed(self, known: Mapping[str, str], since: float) -> dict[str, bool]:
        """Which of these topics are not the ones they were, and whether there is another one.

        `since`: when they were known to be so, by the monotonic clock. Answers of before do not
        count.
        """
        last = self._last
        if last.asked_at < since:
            return {}
        found = {topic: True for topic, was in known.items() if last.ids.get(topic, was) != was}
        for topic in known:
            if last.asked_at - last.missing.get(topic, last.asked_at) > _GONE_AFTER:
                found[topic] = False
        return found

    def close(self) -> None:
        self._is_over.set()

    def run(self) -> None:
        while not self._is_over.wait(_EVERY):
            topics, now = self._topics, time.monotonic()
            try:
                ids = topic_ids(self._log, topics)
            except LogError as error:
                _log.debug("cannot ask for the ids of topics: %s", error)
                self._last = _Look(now, {}, {})
                continue
            missing = {each: self._last.missing.get(each, now) for each in topics - ids.keys()}
            self._last = _Look(now, ids, missing)
