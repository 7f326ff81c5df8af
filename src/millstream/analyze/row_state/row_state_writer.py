"""Writes the states and ends of rows into the topics of views; `row_state` decides which."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from millstream.analyze.plan import ViewPlan
from millstream.analyze.row_state.row_state import (
    ENDS,
    Claim,
    End,
    Place,
    RowStates,
    Statement,
    stateful,
)
from millstream.log.connection import client_config
from millstream.log.consumer import BEGINNING, Partition, Reader, bounds
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.log.topics import topic_ids
from millstream.values.clock import now_ms

_log = logging.getLogger(__name__)
_SECONDS = 5.0
_LOOK_SECONDS = 5.0


class Claims:
    """What was claimed, kept as offsets of a group that nobody joins: Kafka keeps it with them.

    A claim is one topic's: one of the same name that was made anew has none.
    """

    def __init__(self, log: LogSettings, app: str, topics: Iterable[str]) -> None:
        self.ids = topic_ids(log, topics)
        config = client_config(log, group_id=f"{app}.closer", enable_auto_commit=False)
        self._consumer = Consumer(config)

    def read(self, partitions: Iterable[Partition]) -> dict[Partition, Claim]:
        asked = [TopicPartition(*each) for each in partitions]
        found = {}
        for each in self._consumer.committed(asked, _SECONDS):
            topic_id, _, until = (each.metadata or "").partition(" ")
            if each.offset >= 0 and until and topic_id == self.ids.get(each.topic):
                found[each.topic, each.partition] = Claim(each.offset, int(until))
        return found

    def write(self, claims: Mapping[Partition, Claim]) -> None:
        """Returns when they are kept; KafkaException if they are not."""
        offsets = [
            TopicPartition(*at, claim.offset, f"{self.ids.get(at[0], '')} {claim.until}")
            for at, claim in claims.items()
        ]
        for each in self._consumer.commit(offsets=offsets, asynchronous=False) or ():
            if each.error is not None:
                raise KafkaException(each.error)

    def close(self) -> None:
        self._consumer.close()


def closed_until(log: LogSettings, app: str, topic: str) -> int:
    """By when the windows ended whose rows were made final in a topic; 0: none were. Blocks."""
    claims = Claims(log, app, [topic])
    try:
        found = claims.read((topic, partition) for partition in bounds(log, topic))
        return max((claim.until for claim in found.values()), default=0)
    finally:
        claims.close()


class RowStateWriter:
    """Reads the views' topics, and writes what is due at each `tick`, from one thread."""

    def __init__(
        self,
        log: LogSettings,
        app: str,
        views: Iterable[ViewPlan],
        clock: Callable[[], int] = now_ms,
    ) -> None:
        views = list(views)
        lasting = [view for view in views if view.keep_ms is not None and view.key is not None]
        lived = list({view.written: view for view in (*lasting, *stateful(views))}.values())
        self._topics = {view.name: view.written for view in lived}
        self._lives = RowStates(lived)
        self._lock = threading.Lock()  # the reader's thread brings records, the caller's ticks
        self._clock = clock
        # Topic → when it last brought a record; monotonic.
        self._heard = dict.fromkeys(self._topics.values(), time.monotonic())
        self._log, self._looked = log, time.monotonic()
        self._reader: Reader | None = None
        if lived:
            self._producer = Producer(client_config(log, enable_idempotence=True, linger_ms=5))
            topics = [view.written for view in lived]
            start = {(t, number): BEGINNING for t in topics for number in bounds(log, t)}
            self._claims = Claims(log, app, topics)
            self._lives.claimed = self._claims.read(start)
            self._reader = Reader(log, start, self._take)

    def tick(
        self,
        watermarks: Mapping[str, int] | None = None,
        committed: Mapping[str, int] | None = None,
    ) -> None:
        """Write what is due; never blocks for long. KafkaException if Kafka is away.

        `watermarks` are the views', `committed` tells until when all that Spark wrote is final to
        it; both by view's name, in milliseconds since the epoch.
        """
        if self._reader is None:
            return
        self._producer.poll(0)
        if not self._reader.is_caught_up:  # there may be newer rows, or tombstones already
            return
        passed = self._by_topic(watermarks or {})
        self._claim(passed)
        with self._lock:
            ends, returns = self._lives.ends(self._clock()), self._lives.returns()
            statements = self._lives.statements(passed)
            self._lives.forget(passed, self._by_topic(committed or {}))
        for end in ends:
            if end.last is not None:
                self._write(end.place, end.last)
            self._write(end.place, None, end)
        for row in returns:
            _log.info("a row of %s was ended too early; it is back", row.place.topic)
            self._write(row.place, row.value, timestamp=row.timestamp)
        for statement in statements:
            self._write(statement.place, statement.value, statement)

    def is_current(self) -> bool:
        """Whether the topics are the ones that it began with; asked of Kafka now and then."""
        if self._reader is None or time.monotonic() - self._looked < _LOOK_SECONDS:
            return True
        self._looked = time.monotonic()
        now = topic_ids(self._log, self._topics.values())
        return all(now.get(topic, known) == known for topic, known in self._claims.ids.items())

    def received(self, view: str) -> str:
        """When the newest event in the view's rows was received; RFC 3339, empty if none was."""
        return self._lives.received.get(self._topics.get(view, ""), "")

    def quiet_seconds(self, view: str) -> float:
        """For how long the view's topic has brought nothing."""
        return time.monotonic() - self._heard.get(self._topics.get(view, ""), 0.0)

    def is_closed(self, view: str, until: int) -> bool:
        """Whether all rows of the view have their state in the log whose windows ended by then."""
        if view not in self._topics or self._reader is None:
            return True
        with self._lock:
            return self._reader.is_caught_up and self._lives.is_closed(self._topics[view], until)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._producer.flush(1.0)
            self._claims.close()

    def _claim(self, watermarks: Mapping[str, int]) -> None:
        with self._lock:
            claims = self._lives.claims(watermarks)
        if claims:
            self._claims.write(claims)
            with self._lock:
                self._lives.claimed |= claims

    def _by_topic(self, by_view: Mapping[str, int]) -> dict[str, int]:
        return {self._topics[name]: each for name, each in by_view.items() if name in self._topics}

    def _take(self, records: list[Record]) -> None:
        with self._lock:
            for record in records:
                self._lives.apply(record)
                self._heard[record.topic] = time.monotonic()

    def _write(
        self, place: Place, value: bytes | None, what: End | Statement | None = None, **more: Any
    ) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failed()

        def failed() -> None:
            if what is not None:
                with self._lock:
                    self._lives.failed(what)

        headers: list[tuple[str, str | bytes | None]] = []
        if isinstance(what, End):
            headers.append((ENDS, str(what.offset)))
        try:
            # The partition is named: Spark's producer spreads keys in another way than ours.
            self._producer.produce(
                *(place.topic, value, place.key, place.partition),
                headers=headers,
                on_delivery=delivered,
                **more,
            )
        except (BufferError, KafkaException):
            failed()
