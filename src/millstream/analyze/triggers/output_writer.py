"""Reads what a view's query gives, and writes what is shown of it and entered, exactly once.

A transaction holds all that comes of a batch, and how far we have got. A keeper that is killed
leaves at most an open one, which its successor, by the same transactional id, ends before it looks
at what there is; one that only seems dead is shut out by the same. Whatever fails begins anew so.
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
_WAIT = 0.05  # seconds; how late at most the clock is noticed
_BATCH = 1000
_PATIENCE = 30.0  # seconds that Kafka may take to answer
_PAUSE = 0.5  # seconds between a failure of Kafka and the next attempt
_LONG_PAUSE = 5.0  # the same, after one of our own
_LOOK_AGAIN = 2.0  # seconds between two looks at whether the topic is still the same


@dataclass(frozen=True, slots=True)
class OutputTask:
    """What a keeper is to do for one view."""

    view: str
    topics: OutputTopics
    showing: OutputSpec | None  # None: the query's rows are shown as they are
    books: LedgerSpec | None  # None: there is no ledger
    forget_ms: int  # how long after its end a row may come again, from events that are kept


class OutputWriter:
    """One view's, in a thread of its own."""

    def __init__(
        self,
        log: LogSettings,
        task: OutputTask,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._log, self.task = log, task
        self._clock = clock
        self._closing = threading.Event()
        self.error = ""  # why it does not get on; empty while it does
        self.is_at_end = False  # all that the query has written was shown, a moment ago
        self._thread = threading.Thread(target=self._run, name=f"panes {task.view}", daemon=True)
        self._thread.start()

    def close(self, timeout: float = 10.0) -> None:
        """End; what is not committed by then is done by the next one."""
        self._closing.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._keep()
            except (KafkaException, LogError, BufferError) as failure:
                cause = failure.args[0] if failure.args else failure
                self.error = cause.str() if isinstance(cause, KafkaError) else str(failure)
                _log.warning("view %s is shown later: %s", self.task.view, self.error)
                self._closing.wait(_PAUSE)
            except Exception as failure:
                self.error = f"{type(failure).__name__}: {failure}"
                _log.exception("view %s is shown later", self.task.view)
                self._closing.wait(_LONG_PAUSE)

    def _keep(self) -> None:
        """Read and write until something fails or the query's topic is another one."""
        topics, self.is_at_end = self.task.topics, False
        generation = self._generation()
        producer = self._producer()
        partitions = sorted(bounds(self._log, topics.written))
        work = self._recall(generation, partitions)
        consumer = self._consumer()
        try:
            starts = work.start()
            consumer.assign([TopicPartition(topics.written, p, starts[p]) for p in partitions])
            spread = {topic: len(bounds(self._log, topic)) for topic in self._outputs()}
            looked = time.monotonic()
            while not self._closing.is_set():
                is_news = self._read(consumer, work)
                self._write(producer, work.outcome(self._clock()), spread)
                self.error, self.is_at_end = "", not is_news and work.has_read_all
                if time.monotonic() - looked > _LOOK_AGAIN:
                    looked = time.monotonic()
                    if self._generation() != generation:
                        return
        finally:
            consumer.close()

    def _generation(self) -> str:
        """The ids of the topics: if either was made anew, all is to be shown anew."""
        topics = self.task.topics
        asked = dict.fromkeys([topics.written, topics.view])
        found = topic_ids(self._log, asked)
        if missing := asked.keys() - found.keys():
            raise LogError(f"there is no topic {min(missing)}")
        return " ".join(found[topic] for topic in asked)

    def _producer(self) -> Producer:
        """A producer that has ended whatever its predecessor left open.

        That may be the keeper of an earlier edition, which entered, or of this one before it was
        served, which did not.
        """
        topics = self.task.topics
        names = dict.fromkeys([topics.panes, topics.book] if self.task.books else [topics.panes])
        for name in names:
            config = client_config(
                self._log,
                transactional_id=name,
                transaction_timeout_ms=30_000,
                linger_ms=5,
            )
            producer = Producer(config)
            producer.init_transactions(_PATIENCE)
        return producer

    def _consumer(self) -> Consumer:
        return Consumer(
            consumer_config(
                self._log,
                # Where compaction or retention has taken what was there, go on with what there is.
                auto_offset_reset="earliest",
                enable_partition_eof=True,
                isolation_level="read_committed",
            )
        )

    def _recall(self, generation: str, partitions: Iterable[int]) -> OutputProcessor:
        task = self.task
        panes = None
        if task.showing is not None:
            panes = ShownRows(task.showing, generation, task.forget_ms)
        book = None if task.books is None else Ledger(task.books, task.forget_ms)
        work = OutputProcessor(task.topics, generation, partitions, panes, book)
        newest: dict[tuple[str, bytes], Record] = {}
        for topic in {task.topics.panes, task.topics.book}:
            for partition, (first, end) in bounds(self._log, topic).items():
                for record in read_range(self._log, topic, partition, first, end):
                    newest[topic, record.key or b""] = record
        for record in newest.values():
            work.recall(record)
        return work

    def _outputs(self) -> Iterable[str]:
        topics = self.task.topics
        yield topics.panes
        if self.task.showing is not None:
            yield topics.view
        if self.task.books is not None:
            yield from (topics.ledger, topics.book)

    def _read(self, consumer: Consumer, work: OutputProcessor) -> bool:
        """Whether there was anything."""
        first = consumer.poll(_WAIT)
        if first is None:
            return False
        now = self._clock()
        for message in (first, *consumer.consume(_BATCH - 1, 0)):
            if (error := message.error()) is None:
                work.apply(Record.of(message), now)
            elif error.code() == KafkaError._PARTITION_EOF:
                work.reached_end(message.partition() or 0)
            elif not error.retriable() and error.code() != KafkaError._TRANSPORT:
                raise KafkaException(error)
        return True

    def _write(self, producer: Producer, writes: list[Write], spread: dict[str, int]) -> None:
        if not writes:
            return
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failed.append(error)

        producer.begin_transaction()
        for write in writes:
            partition = (write.partition or 0) % spread[write.topic]
            while True:
                try:
                    producer.produce(
                        write.topic, write.value, write.key, partition, on_delivery=delivered
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.commit_transaction(_PATIENCE)
        if failed:
            raise KafkaException(failed[0])
