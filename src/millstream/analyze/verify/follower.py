"""A topic that is read from what it holds to its end, and on, while something else is computed."""

from __future__ import annotations

import threading
import time

from millstream.errors import MillstreamError
from millstream.log.consumer import Reader, bounds
from millstream.log.record import Record
from millstream.log.settings import LogSettings

PAUSE = 0.05  # seconds between two looks at what has come


class Follower:
    """Reads in a thread of its own until it is closed. Made last: records may come at once."""

    def __init__(self, log: LogSettings, topic: str) -> None:
        self._topic = topic
        self._lock = threading.Lock()
        self._news = time.monotonic()  # when something came last
        self.held_from = {partition: low for partition, (low, _) in bounds(log, topic).items()}
        start = {(topic, partition): low for partition, low in self.held_from.items()}
        self._reader = Reader(log, start, self._receive)

    def close(self) -> None:
        self._reader.close()
        self._reader.join()

    def catch_up(self, patience: float) -> None:
        """Return when all is read that there was; MillstreamError if nothing comes."""
        while not self._reader.is_caught_up:
            if time.monotonic() - self._news > patience:
                raise MillstreamError(f"cannot read {self._topic} to its end", remedy="see Kafka")
            time.sleep(PAUSE)

    def _receive(self, records: list[Record]) -> None:
        with self._lock:
            for record in records:
                self._take(record)

    def _take(self, record: Record) -> None:
        """Take in a record, with the lock held."""
        raise NotImplementedError
