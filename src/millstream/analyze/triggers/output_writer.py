"""Reads the rows of a view's query, and writes its shown rows and ledger entries exactly once.

A transaction holds everything that results from a batch, with the position in the query's topic. A
writer that is killed leaves at most one open transaction. Its successor has the same transactional
id, so it aborts that transaction and shuts out a writer that still runs. After any failure the
writer starts again in this way.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from millstream.analyze.triggers.ledger import Ledger, LedgerSpec
from millstream.analyze.triggers.processor import OutputProcessor, OutputTopics, Write
from millstream.analyze.triggers.shown_rows import OutputSpec, ShownRows
from millstream.errors import LogError
from millstream.log.connection import client_config, consumer_config
from millstream.log.consumer import bounds, read_range
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.log.topics import topic_ids
from millstream.values.clock import now_ms

_log = logging.getLogger(__name__)
_WAIT = 0.05  # seconds; the most by which a trigger by the clock is late
_BATCH = 1000
_KAFKA_SECONDS = 30.0  # for one answer
_PAUSE = 0.5  # seconds between a failure of Kafka and the next attempt
_LONG_PAUSE = 5.0  # the same, after an error of ours
_TOPIC_CHECK_SECONDS = 2.0  # between two checks whether the topic is still the same


@dataclass(frozen=True, slots=True)
class OutputTask:
    """What an output writer does for one view."""

    view: str
    topics: OutputTopics
    output: OutputSpec | None  # None: the query's rows are shown as they are
    ledger: LedgerSpec | None  # None: there is no ledger
    forget_ms: int  # how long after its deletion a row may come again, from events that are kept


class OutputWriter:
    """Writes one view's output, in a thread."""

    def __init__(
        self, log: LogSettings, task: OutputTask, clock: Callable[[], int] = now_ms
    ) -> None:
        self._log, self.task = log, task
        self._clock = clock
        self._closing = threading.Event()
        self.error = ""  # why nothing is written; empty while it is
        self.is_at_end = False  # a moment ago, all that the query has written was shown
        self._thread = threading.Thread(target=self._run, name=f"output {task.view}", daemon=True)
        self._thread.start()

    def close(self, timeout: float = 10.0) -> None:
        """End the thread. The next writer does what is not committed by then."""
        self._closing.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._write_output()
            except (KafkaException, LogError, BufferError) as failure:
                cause = failure.args[0] if failure.args else failure
                self.error = cause.str() if isinstance(cause, KafkaError) else str(failure)
                _log.warning("rows of view %s are shown later: %s", self.task.view, self.error)
                self._closing.wait(_PAUSE)
            except Exception as failure:
                self.error = f"{type(failure).__name__}: {failure}"
                _log.exception("rows of view %s are shown later", self.task.view)
                self._closing.wait(_LONG_PAUSE)

    def _write_output(self) -> None:
        """Read and write until something fails or the query's topic is another one."""
        topics, self.is_at_end = self.task.topics, False
        generation = self._generation()
        producer = self._producer()
        partitions = sorted(bounds(self._log, topics.written))
        processor = self._restore(generation, partitions)
        consumer = self._consumer()
        try:
            starts = processor.start()
            consumer.assign([TopicPartition(topics.written, p, starts[p]) for p in partitions])
            counts = {topic: len(bounds(self._log, topic)) for topic in self._written_topics()}
            checked = time.monotonic()
            while not self._closing.is_set():
                has_read = self._read(consumer, processor)
                self._write(producer, processor.take_writes(self._clock()), counts)
                self.error, self.is_at_end = "", not has_read and processor.has_read_all
                if time.monotonic() - checked > _TOPIC_CHECK_SECONDS:
                    checked = time.monotonic()
                    if self._generation() != generation:
                        return
        finally:
            consumer.close()

    def _generation(self) -> str:
        """The ids of the topics: if either was created again, all rows are shown again."""
        topics = self.task.topics
        asked = dict.fromkeys([topics.written, topics.view])
        found = topic_ids(self._log, asked)
        if missing := asked.keys() - found.keys():
            raise LogError(f"there is no topic {min(missing)}")
        return " ".join(found[topic] for topic in asked)

    def _producer(self) -> Producer:
        """A producer that has aborted every transaction that a predecessor left open.

        The predecessor may have written an earlier edition, with the ledger, or this edition
        before it was served, without.
        """
        topics = self.task.topics
        ids = [topics.state, topics.ledger_state] if self.task.ledger else [topics.state]
        for transactional_id in dict.fromkeys(ids):
            config = client_config(
                self._log,
                transactional_id=transactional_id,
                transaction_timeout_ms=30_000,
                linger_ms=5,
            )
            producer = Producer(config)
            producer.init_transactions(_KAFKA_SECONDS)
        return producer

    def _consumer(self) -> Consumer:
        return Consumer(
            consumer_config(
                self._log,
                # If compaction or retention deleted an offset, continue with the next one.
                auto_offset_reset="earliest",
                enable_partition_eof=True,
                isolation_level="read_committed",
            )
        )

    def _restore(self, generation: str, partitions: Iterable[int]) -> OutputProcessor:
        task = self.task
        shown = None
        if task.output is not None:
            shown = ShownRows(task.output, generation, task.forget_ms)
        ledger = None if task.ledger is None else Ledger(task.ledger, task.forget_ms)
        processor = OutputProcessor(task.topics, generation, partitions, shown, ledger)
        for topic in {task.topics.state, task.topics.ledger_state}:
            for record in newest_records(self._log, topic):
                processor.restore(record)
        return processor

    def _written_topics(self) -> Iterable[str]:
        topics = self.task.topics
        yield topics.state
        if self.task.output is not None:
            yield topics.view
        if self.task.ledger is not None:
            yield from (topics.ledger, topics.ledger_state)

    def _read(self, consumer: Consumer, processor: OutputProcessor) -> bool:
        """Whether there was anything to read."""
        first = consumer.poll(_WAIT)
        if first is None:
            return False
        now = self._clock()
        for message in (first, *consumer.consume(_BATCH - 1, 0)):
            if (error := message.error()) is None:
                processor.apply(Record.of(message), now)
            elif error.code() == KafkaError._PARTITION_EOF:
                processor.reached_end(message.partition() or 0)
            elif not error.retriable() and error.code() != KafkaError._TRANSPORT:
                raise KafkaException(error)
        return True

    def _write(self, producer: Producer, writes: list[Write], counts: dict[str, int]) -> None:
        """Write all in one transaction; `counts` has the number of partitions of each topic."""
        if not writes:
            return
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failed.append(error)

        producer.begin_transaction()
        for write in writes:
            partition = (write.partition or 0) % counts[write.topic]
            while True:
                try:
                    producer.produce(
                        write.topic, write.value, write.key, partition, on_delivery=delivered
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.commit_transaction(_KAFKA_SECONDS)
        if failed:
            raise KafkaException(failed[0])


def newest_records(log: LogSettings, topic: str) -> Iterable[Record]:
    """The newest record of each key of a compacted topic; blocks."""
    newest: dict[bytes, Record] = {}
    for partition, (first, end) in bounds(log, topic).items():
        for record in read_range(log, topic, partition, first, end):
            newest[record.key or b""] = record
    return newest.values()
