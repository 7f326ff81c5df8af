"""Reads the log from given offsets on, without a consumer group: callers keep the positions."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from millstream.errors import LogError
from millstream.log.connection import consumer_config
from millstream.log.record import Record
from millstream.log.settings import LogSettings

BEGINNING: int = OFFSET_BEGINNING
END: int = OFFSET_END
Partition = tuple[str, int]  # topic, partition

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.1  # a reader notices within this time that it was closed
_OFFSET_GONE = {
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError.INCONSISTENT_TOPIC_ID,
}
# A new topic, or a broker that was restarted, has no leader for a moment.
TRANSIENT_ERRORS = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError._TRANSPORT,
}


class Reader:
    """A thread that reads partitions from given offsets on, and calls `deliver` with the records.

    `deliver` gets lists of records, in order per partition. It runs in the event loop if one is
    given, else in the reader's thread. The next list is read when it has returned: a slow receiver
    slows the reading, and no records pile up. `caught_up` is called once, in the same place, when
    the end of every partition was reached.

    If Kafka is down, the reader waits. `lost` is called when a partition's next offset is not in
    the log, because the topic was deleted or recreated, or retention deleted the records. That
    partition is not read any further. Without `lost`, reading continues with the oldest record.
    """

    def __init__(
        self,
        log: LogSettings,
        start: Mapping[Partition, int],
        deliver: Callable[[list[Record]], None],
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        caught_up: Callable[[], None] | None = None,
        lost: Callable[[str, int], None] | None = None,
        batch: int = 1000,
    ) -> None:
        self._deliver = deliver
        self._loop = loop
        self._on_caught_up = caught_up
        self._on_lost = lost
        self._batch = batch
        self._behind = set(start)  # partitions whose end was not reached yet
        self._ends: dict[Partition, int] = {}  # where the end was when reading began
        self._assigned = [TopicPartition(*partition, start[partition]) for partition in start]
        self._wants_pause = self._is_paused = False
        self._closing = threading.Event()
        self.failure: BaseException | None = None  # raised by `deliver`; it ended the reading
        reset = "error" if lost else "earliest"
        self._kafka = Consumer(
            consumer_config(log, auto_offset_reset=reset, enable_partition_eof=True)
        )
        self._kafka.assign(self._assigned)
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()

    @property
    def is_caught_up(self) -> bool:
        """Whether the end of every partition was reached since the start."""
        return not self._behind

    def pause(self) -> None:
        """Fetch nothing until `resume`; records that were fetched are still delivered."""
        self._wants_pause = True

    def resume(self) -> None:
        """Fetch again, from the same offsets."""
        self._wants_pause = False

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    def close(self) -> None:
        """Stop reading; returns at once. After a call in the event loop, nothing is delivered."""
        self._closing.set()

    def join(self, timeout: float = 10.0) -> None:
        """Wait until the thread has ended; must not be called in the event loop."""
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._apply_pause()
                self._read()
        except BaseException as error:
            self.failure = error
            _log.exception("a reader of the log stopped: its receiver failed")
        finally:
            self._kafka.close()

    def _apply_pause(self) -> None:
        # Called in the reader's thread: in another one, it would block while a poll runs.
        if self._wants_pause != self._is_paused:
            self._is_paused = self._wants_pause
            change = self._kafka.pause if self._is_paused else self._kafka.resume
            change(self._assigned)

    def _read(self) -> None:
        # consume() alone would wait for a full batch: poll for the first, then drain the queue.
        first = self._kafka.poll(_POLL_SECONDS)
        if first is None:
            return
        messages = [first, *self._kafka.consume(self._batch - 1, 0)]
        if records := [Record.of(message) for message in messages if message.error() is None]:
            self._call(lambda: self._deliver(records))
            if self._behind:
                self._check_ends(records)
        for message in messages:
            if (error := message.error()) is not None:
                self._handle_error(error, message)

    def _check_ends(self, records: list[Record]) -> None:
        # A busy partition never reports its end, because new records keep coming. So it is enough
        # to reach the end as it was when the first record was read.
        for partition, offset in {(r.topic, r.partition): r.offset for r in records}.items():
            if partition in self._behind:
                if partition not in self._ends:
                    known = self._kafka.get_watermark_offsets(
                        TopicPartition(*partition), cached=True
                    )
                    self._ends[partition] = known[1]
                if offset + 1 >= self._ends[partition]:
                    self._reached_end(partition)

    def _reached_end(self, partition: Partition) -> None:
        if partition in self._behind:
            self._behind.discard(partition)
            if not self._behind and self._on_caught_up:
                self._call(self._on_caught_up)

    def _handle_error(self, error: KafkaError, message: Message) -> None:
        topic, partition = message.topic() or "", message.partition() or 0
        if error.code() == KafkaError._PARTITION_EOF:
            self._reached_end((topic, partition))
        elif error.code() in _OFFSET_GONE and self._on_lost:
            self._kafka.incremental_unassign([TopicPartition(topic, partition)])
            lost = self._on_lost
            self._call(lambda: lost(topic, partition))
        else:
            _log.warning("reading topic %s, partition %d: %s", topic, partition, error.str())

    def _call(self, function: Callable[[], None]) -> None:
        if self._closing.is_set():
            return
        if self._loop is None:
            function()
            return
        done: Future[None] = Future()
        try:
            self._loop.call_soon_threadsafe(self._complete, function, done)
        except RuntimeError:  # the loop is closed
            self._closing.set()
            return
        while not self._closing.is_set():
            try:
                return done.result(_POLL_SECONDS)
            except TimeoutError:
                if done.done():  # `function` raised it
                    raise

    def _complete(self, function: Callable[[], None], done: Future[None]) -> None:
        try:
            if not self._closing.is_set():
                function()
            done.set_result(None)
        except Exception as error:
            done.set_exception(error)


def read_range(
    log: LogSettings, topic: str, partition: int, start: int, stop: int, *, patience: float = 30.0
) -> Generator[Record, None, None]:
    """The records with start <= offset < stop that still exist; blocks between them.

    LogError if `start` is not in the log any more, or nothing is read for `patience` seconds.
    """
    consumer = Consumer(consumer_config(log, auto_offset_reset="error", enable_partition_eof=True))
    try:
        consumer.assign([TopicPartition(topic, partition, start)])
        deadline = time.monotonic() + patience
        while start < stop:
            first = consumer.poll(_POLL_SECONDS)
            if first is None:
                if time.monotonic() > deadline:
                    raise LogError(f"cannot read {topic}: nothing came in {patience:g} s")
                continue
            deadline = time.monotonic() + patience
            for message in (first, *consumer.consume(1000, 0)):
                if (error := message.error()) is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        return
                    raise LogError(f"cannot read {topic} from offset {start} on: {error.str()}")
                start = (message.offset() or 0) + 1
                if start > stop:
                    return
                yield Record.of(message)
    finally:
        consumer.close()


def bounds(log: LogSettings, topic: str, timeout: float = 10.0) -> dict[int, tuple[int, int]]:
    """The first offset and the end offset of each partition of a topic. Blocks."""
    consumer = Consumer(consumer_config(log))
    deadline = time.monotonic() + timeout
    try:
        while True:
            try:
                return _bounds(consumer, topic, timeout)
            except KafkaException as error:
                cause = error.args[0]
                # A partition of an existing topic is unknown only until its leader answers.
                is_transient = cause.code() in {*TRANSIENT_ERRORS, KafkaError._UNKNOWN_PARTITION}
                if not is_transient or time.monotonic() > deadline:
                    raise LogError(f"cannot look at topic {topic}: {cause.str()}") from error
                time.sleep(_POLL_SECONDS)
    finally:
        consumer.close()


def _bounds(consumer: Consumer, topic: str, timeout: float) -> dict[int, tuple[int, int]]:
    return {
        partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout)
        for partition in partitions_of(consumer, topic, timeout)
    }


def partitions_of(consumer: Consumer, topic: str, timeout: float) -> list[int]:
    """The partitions of a topic; KafkaException if it is unknown."""
    known = consumer.list_topics(topic, timeout).topics[topic]
    if known.error is not None:
        raise KafkaException(known.error)
    return list(known.partitions)
