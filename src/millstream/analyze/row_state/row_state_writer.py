"""Writes the states and tombstones of rows into the views' topics; `row_state` decides which."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from millstream.analyze.plan import ViewPlan
from millstream.analyze.row_state.committed_watermarks import CommittedWatermarks
from millstream.analyze.row_state.row_state import RowStates, has_row_states
from millstream.analyze.row_state.row_updates import DELETES, RowKey, StateUpdate, Tombstone
from millstream.log.connection import client_config
from millstream.log.consumer import BEGINNING, Reader, bounds
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.log.topics import topic_ids
from millstream.values.clock import now_ms

_log = logging.getLogger(__name__)
_TOPIC_CHECK_SECONDS = 5.0


class RowStateWriter:
    """Reads the views' topics, and writes what is due at each `tick`, from one thread."""

    def __init__(
        self,
        log: LogSettings,
        app: str,
        views: Iterable[ViewPlan],
        clock: Callable[[], int] = now_ms,
    ) -> None:
        views = [
            view
            for view in views
            if has_row_states(view) or (view.keep_ms is not None and view.key is not None)
        ]
        self._topics = {view.name: view.query_topic for view in views}
        self._states = RowStates(views)
        self._lock = threading.Lock()  # the reader's thread applies records, the caller's ticks
        self._clock = clock
        # Topic → monotonic time of its newest record.
        self._last_record = dict.fromkeys(self._topics.values(), time.monotonic())
        self._log, self._topics_checked = log, time.monotonic()
        self._reader: Reader | None = None
        if views:
            self._producer = Producer(client_config(log, enable_idempotence=True, linger_ms=5))
            topics = self._topics.values()
            start = {(t, number): BEGINNING for t in topics for number in bounds(log, t)}
            self._watermarks = CommittedWatermarks(log, app, topics)
            self._states.committed = self._watermarks.read(start)
            self._reader = Reader(log, start, self._apply)

    def tick(
        self,
        watermarks: Mapping[str, int] | None = None,
        spark_committed: Mapping[str, int] | None = None,
    ) -> None:
        """Write what is due; never blocks for long. KafkaException if Kafka is unreachable.

        `watermarks` are the views'. Spark has committed all that it wrote before
        `spark_committed`. Both are by view name, in milliseconds since the epoch.
        """
        if self._reader is None:
            return
        self._producer.poll(0)
        if not self._reader.is_caught_up:  # there may be newer rows, or tombstones already
            return
        passed = self._by_topic(watermarks or {})
        self._commit(passed)
        with self._lock:
            tombstones, restored = self._states.tombstones(self._clock()), self._states.restored()
            updates = self._states.state_updates(passed)
            self._states.forget(passed, self._by_topic(spark_committed or {}))
        for tombstone in tombstones:
            if tombstone.final_value is not None:
                self._write(tombstone.row, tombstone.final_value)
            headers = [(DELETES, str(tombstone.offset))]
            self._write(tombstone.row, None, tombstone, headers=headers)
        for row in restored:
            _log.info(
                "wrote a row of %s again: a tombstone of an older row came after it", row.row.topic
            )
            self._write(row.row, row.value, timestamp=row.timestamp)
        for update in updates:
            self._write(update.row, update.value, update)

    def is_current(self) -> bool:
        """Whether the topics are still the same ones. Asks Kafka every few seconds."""
        if self._reader is None or time.monotonic() - self._topics_checked < _TOPIC_CHECK_SECONDS:
            return True
        self._topics_checked = time.monotonic()
        now = topic_ids(self._log, self._topics.values())
        return all(now.get(topic, known) == known for topic, known in self._watermarks.ids.items())

    def received(self, view: str) -> str:
        """When the newest event in the view's rows was received; RFC 3339, empty if none was."""
        return self._states.received.get(self._topics.get(view, ""), "")

    def quiet_seconds(self, view: str) -> float:
        """Seconds since the newest record in the view's topic."""
        return time.monotonic() - self._last_record.get(self._topics.get(view, ""), 0.0)

    def is_final_until(self, view: str, until: int) -> bool:
        """Whether the log has the final state of every row whose window ended by then."""
        if view not in self._topics or self._reader is None:
            return True
        with self._lock:
            is_final = self._states.is_final_until(self._topics[view], until)
            return self._reader.is_caught_up and is_final

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._producer.flush(1.0)
            self._watermarks.close()

    def _commit(self, watermarks: Mapping[str, int]) -> None:
        with self._lock:
            due = self._states.to_commit(watermarks)
        if due:
            self._watermarks.write(due)
            with self._lock:
                self._states.committed |= due

    def _by_topic(self, by_view: Mapping[str, int]) -> dict[str, int]:
        return {self._topics[name]: each for name, each in by_view.items() if name in self._topics}

    def _apply(self, records: list[Record]) -> None:
        with self._lock:
            for record in records:
                self._states.apply(record)
                self._last_record[record.topic] = time.monotonic()

    def _write(
        self,
        row: RowKey,
        value: bytes | None,
        update: Tombstone | StateUpdate | None = None,
        **options: Any,
    ) -> None:
        """Send a record; `update` is retried if that fails."""

        def retry() -> None:
            if update is not None:
                with self._lock:
                    self._states.retry(update)

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                retry()

        try:
            # The partition is given: Spark's producer assigns keys to partitions differently.
            self._producer.produce(
                row.topic, value, row.key, row.partition, on_delivery=delivered, **options
            )
        except (BufferError, KafkaException):
            retry()
