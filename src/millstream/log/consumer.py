"""Reading the log from given offsets on, without a consumer group: positions are ours to keep."""

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
_WAIT = 0.1  # seconds; how late at most a reader notices that it was closed
_LOST = {
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError.INCONSISTENT_TOPIC_ID,
}
# A topic that was just made, or a broker that just came back, has no leader for a moment.
PASSING = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError._TRANSPORT,
}


class Reader:
    """A thread that reads topic-partitions from given offsets on and hands over what it finds.

    `deliver` gets lists of records, in order per partition: in the event loop if one is given, else
    in the reader's thread. The next list comes when it has returned, so a slow receiver slows the
    reading and nothing piles up. `caught_up` is called once, there too, when the end of every
    partition has been reached.

    Kafka being away only delays. `lost` is called when a partition's next offset is not in the log:
    the topic was made anew or deleted, or its retention was faster; that partition is then read no
    further. Without `lost`, reading goes on from what there is.
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
        self._tell_caught_up = caught_up
        self._lost = lost
        self._batch = batch
        self._behind = set(start)  # partitions whose end has not been seen yet
        self._ends: dict[Partition, int] = {}  # of those, where the end was when reading began
        self._assigned = [TopicPartition(*partition, start[partition]) for partition in start]
        self._wants_pause = self._is_paused = False
        self._closing = threading.Event()
        self.failure: BaseException | None = None  # what `deliver` raised; it ended the reading
        reset = "error" if lost else "earliest"
        self._kafka = Consumer(
            consumer_config(log, auto_offset_reset=reset, enable_partition_eof=True)
        )
        self._kafka.assign(self._assigned)
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()

    @property
    def is_caught_up(self) -> bool:
        """Whether the end of every partition has been reached since the start."""
        return not self._behind

    def pause(self) -> None:
        """Fetch nothing until `resume`; what is on its way is still delivered."""
        self._wants_pause = True

    def resume(self) -> None:
        """Fetch again, from where it was."""
        self._wants_pause = False

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    def close(self) -> None:
        """End the reading; returns at once. Called in the loop, nothing is delivered after it."""
        self._closing.set()

    def join(self, timeout: float = 10.0) -> None:
        """Wait until the thread has ended; not in the loop."""
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._mind_pause()
                self._read()
        except BaseException as error:
            self.failure = error
            _log.exception("a reader of the log stopped: what it delivered was not accepted")
        finally:
            self._kafka.close()

    def _mind_pause(self) -> None:
        # In the reader's own thread: from another, the call would wait for a poll that never ends.
        if self._wants_pause != self._is_paused:
            self._is_paused = self._wants_pause
            change = self._kafka.pause if self._is_paused else self._kafka.resume
            change(self._assigned)

    def _read(self) -> None:
        # consume() alone would wait for a full batch: poll for the first, then take what is there.
        first = self._kafka.poll(_WAIT)
        if first is None:
            return
        messages = [first, *self._kafka.consume(self._batch - 1, 0)]
        if records := [Record.of(message) for message in messages if message.error() is None]:
            self._call(lambda: self._deliver(records))
            if self._behind:
                self._mind_ends(records)
        for message in messages:
            if (error := message.error()) is not None:
                self._heed(error, message)

    def _mind_ends(self, records: list[Record]) -> None:
        # A busy partition never reports its end, for there is always one more: so it is enough to
        # reach the end as it was when the first record came.
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
            if not self._behind and self._tell_caught_up:
                self._call(self._tell_caught_up)

    def _heed(self, error: KafkaError, message: Message) -> None:
        topic, partition = message.topic() or "", message.partition() or 0
        if error.code() == KafkaError._PARTITION_EOF:
            self._reached_end((topic, partition))
        elif error.code() in _LOST and self._lost:
            self._kafka.incremental_unassign([TopicPartition(topic, partition)])
            lost = self._lost
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
        except RuntimeError:  # the loop is closed: nobody is left to deliver to
            self._closing.set()
            return
        while not self._closing.is_set():
            try:
                return done.result(_WAIT)
            except TimeoutError:
                if done.done():  # it was `function` that timed out
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
    """The records with start <= offset < stop that are still there; blocks between them.

    LogError when `start` is not in the log any more, or nothing comes for `patience` seconds.
    """
    consumer = Consumer(consumer_config(log, auto_offset_reset="error", enable_partition_eof=True))
    try:
        consumer.assign([TopicPartition(topic, partition, start)])
        deadline = time.monotonic() + patience
        while start < stop:
            first = consumer.poll(_WAIT)
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
    """Per partition, the oldest offset that is held and the one after the newest; blocks."""
    consumer = Consumer(consumer_config(log))
    deadline = time.monotonic() + timeout
    try:
        while True:
            try:
                return _bounds(consumer, topic, timeout)
            except KafkaException as error:
                cause = error.args[0]
                # Of a topic that is there, a partition is unknown only until its leader answers.
                passes = cause.code() in PASSING or cause.code() == KafkaError._UNKNOWN_PARTITION
                if not passes or time.monotonic() > deadline:
                    raise LogError(f"cannot look at topic {topic}: {cause.str()}") from error
                time.sleep(_WAIT)
    finally:
        consumer.close()


def offsets_at(log: LogSettings, topic: str, moment: int, timeout: float = 10.0) -> dict[int, int]:
    """Per partition, the offset of the first record of that time or later; the end's if none is.

    `moment` is in milliseconds since the epoch. Blocks.
    """
    held = bounds(log, topic, timeout)
    consumer = Consumer(consumer_config(log))
    try:
        asked = [TopicPartition(topic, partition, moment) for partition in held]
        found = consumer.offsets_for_times(asked, timeout=timeout)
    except KafkaException as error:
        raise LogError(f"cannot look at topic {topic}: {error.args[0].str()}") from error
    finally:
        consumer.close()
    return {
        each.partition: each.offset if each.offset >= 0 else held[each.partition][1]
        for each in found
    }


def _bounds(consumer: Consumer, topic: str, timeout: float) -> dict[int, tuple[int, int]]:
    known = consumer.list_topics(topic, timeout).topics[topic]
    if known.error is not None:
        raise KafkaException(known.error)
    return {
        partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout)
        for partition in known.partitions
    }
