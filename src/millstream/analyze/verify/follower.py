"""Reads a topic from its first record to its end, and on, while something else is computed."""

from __future__ import annotations

import threading
import time

from millstream.errors import MillstreamError
from millstream.log.consumer import Reader, bounds
from millstream.log.record import Record
from millstream.log.settings import LogSettings

PAUSE = 0.05  # seconds between two checks whether a record came


class TopicFollower:
    """Reads in a thread until it is closed.

    Subclasses call this constructor last: it starts the thread, which calls `_apply`.
    """

    def __init__(self, log: LogSettings, topic: str) -> None:
        self._topic = topic
        self._lock = threading.Lock()
        self._last_change = time.monotonic()
        self.held_from = {partition: low for partition, (low, _) in bounds(log, topic).items()}
        start = {(topic, partition): low for partition, low in self.held_from.items()}
        self._reader = Reader(log, start, self._receive)

    def close(self) -> None:
        self._reader.close()
        self._reader.join()

    def catch_up(self, patience: float) -> None:
        """Return when the topic is read to its end; MillstreamError if no record comes."""
        while not self._reader.is_caught_up:
            if time.monotonic() - self._last_change > patience:
                raise MillstreamError(f"cannot read {self._topic} to its end", remedy="see Kafka")
            time.sleep(PAUSE)

    def _receive(self, records: list[Record]) -> None:
        with self._lock:
            for record in records:
                self._apply(record)

    def _apply(self, record: Record) -> None:
        """Process a record; called with the lock held."""
        raise NotImplementedError
