"""The end of rows that a view keeps for a time only: a tombstone when that is over.

Spark writes rows and we write their ends, into the same topic, with nothing to order the two: a
newer row can slip in between our reading of the old one and our tombstone. So a tombstone says
which row it ends; when we read it back after a newer row, we write that row again.
"""

from __future__ import annotations

import heapq
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from millstream.analyze.plan import ViewPlan
from millstream.log.connection import admin, client_config
from millstream.log.consumer import BEGINNING, Reader
from millstream.log.record import Record
from millstream.log.settings import LogSettings

ENDS = "ends"  # header of a tombstone: the offset of the row that it ends

_LOGGER = logging.getLogger("millstream.analyze")


class Place(NamedTuple):
    """A row's key in one partition of a view's topic."""

    topic: str
    partition: int
    key: bytes


@dataclass(slots=True)
class _Row:
    offset: int
    timestamp: int
    value: bytes
    due: int  # milliseconds since the epoch
    ending: bool = False  # its tombstone is on the way


class End(NamedTuple):
    """A tombstone to write."""

    place: Place
    offset: int  # of the row that it ends


class Return(NamedTuple):
    """A row to write again, because the tombstone of an older one overtook it."""

    place: Place
    value: bytes
    timestamp: int


class Lives:
    """When each row of the views with `keep` ends. Knows no Kafka: records in, tombstones out."""

    def __init__(self, views: Iterable[ViewPlan]) -> None:
        self._views = {view.topic: view for view in views}
        self._rows: dict[Place, _Row] = {}
        self._queue: list[tuple[int, Place]] = []  # may be too early for a row, never too late
        self._queued: set[Place] = set()
        self._overtaken: dict[Place, Return] = {}

    def apply(self, record: Record) -> None:
        """Take in a record, in the order of its partition."""
        if record.key is None:
            return
        place = Place(record.topic, record.partition, record.key)
        held = self._rows.get(place)
        if record.value is None:
            ends = int(dict(record.headers).get(ENDS, str(record.offset).encode()))
            if held is not None and held.offset > ends:
                value = _returned(held.value, record.offset)
                self._overtaken[place] = Return(place, value, held.timestamp)
            self._rows.pop(place, None)
            return
        self._overtaken.pop(place, None)
        row = _Row(record.offset, record.timestamp, record.value, self._due(record))
        self._rows[place] = row
        self._enqueue(row.due, place)

    def ends(self, now: int) -> list[End]:
        """The tombstones that are due; each is given out once, unless `failed` takes it back."""
        due, again = [], []
        while self._queue and self._queue[0][0] <= now:
            _, place = heapq.heappop(self._queue)
            self._queued.discard(place)
            row = self._rows.get(place)
            if row is None:
                continue
            if row.due <= now and not row.ending:
                row.ending = True
                due.append(End(place, row.offset))
            again.append((max(row.due, now + 1), place))
        for later in again:
            self._enqueue(*later)
        return due

    def failed(self, end: End) -> None:
        """A tombstone that did not get into the log is due again."""
        row = self._rows.get(end.place)
        if row is not None and row.offset == end.offset:
            row.ending = False

    def returns(self) -> list[Return]:
        """The rows to write again; each is given out once."""
        returned, self._overtaken = list(self._overtaken.values()), {}
        return returned

    def _enqueue(self, due: int, place: Place) -> None:
        if place not in self._queued:
            self._queued.add(place)
            heapq.heappush(self._queue, (due, place))

    def _due(self, record: Record) -> int:
        view = self._views[record.topic]
        from_ = record.timestamp
        if view.window is not None and record.value is not None:
            window = msgspec.json.decode(record.value).get(view.window)
            if window and window.get("end"):
                from_ = round(datetime.fromisoformat(window["end"]).timestamp() * 1000)
        return from_ + (view.keep_ms or 0)


def _returned(value: bytes, tombstone: int) -> bytes:
    """The row, told apart from itself as it was before the tombstone, by which servers ended it."""
    row = re.sub(rb',"_returned":\d+}$', b"}", value)
    return row[:-1] + b',"_returned":%d}' % tombstone


class Expiry:
    """Reads the topics of views with `keep`, and writes the ends of their rows at each `tick`."""

    def __init__(
        self,
        log: LogSettings,
        views: Iterable[ViewPlan],
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        kept = [view for view in views if view.keep_ms is not None and view.key is not None]
        self._lives = Lives(kept)
        self._lock = threading.Lock()  # the reader's thread brings records, the caller's ticks
        self._clock = clock
        self._reader: Reader | None = None
        if kept:
            self._producer = Producer(client_config(log, enable_idempotence=True, linger_ms=5))
            known = admin(log).list_topics(timeout=10).topics
            start = {
                (v.topic, number): BEGINNING for v in kept for number in known[v.topic].partitions
            }
            self._reader = Reader(log, start, self._take)

    def tick(self) -> None:
        """Write what is due; never blocks for long."""
        if self._reader is None:
            return
        self._producer.poll(0)
        if not self._reader.is_caught_up:  # there may be newer rows, or tombstones already
            return
        with self._lock:
            ends, returns = self._lives.ends(self._clock()), self._lives.returns()
        for end in ends:
            self._write(end.place, None, end=end)
        for row in returns:
            _LOGGER.info("a row of %s was ended too early; it is back", row.place.topic)
            self._write(row.place, row.value, timestamp=row.timestamp)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._producer.flush(1.0)

    def _take(self, records: list[Record]) -> None:
        with self._lock:
            for record in records:
                self._lives.apply(record)

    def _write(
        self, place: Place, value: bytes | None, *, end: End | None = None, **more: Any
    ) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None and end is not None:
                with self._lock:
                    self._lives.failed(end)

        headers: list[tuple[str, str | bytes | None]] = []
        if end is not None:
            headers.append((ENDS, str(end.offset)))
        try:
            # The partition is named: Spark's producer spreads keys in another way than ours.
            self._producer.produce(
                *(place.topic, value, place.key, place.partition),
                headers=headers,
                on_delivery=delivered,
                **more,
            )
        except (BufferError, KafkaException):
            if end is not None:
                with self._lock:
                    self._lives.failed(end)
