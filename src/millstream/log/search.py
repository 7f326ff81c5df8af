"""Looking through the log for one record, from a moment on, in all partitions at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from enum import Enum

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from millstream.errors import LogError
from millstream.log.connection import client_config
from millstream.log.consumer import Partition
from millstream.log.record import Record
from millstream.log.settings import LogSettings

_WAIT = 0.1


class Look(Enum):
    """What a look at a record tells."""

    ON = "it is further on, if it is here"
    NOT_HERE = "it is not in this partition"
    FOUND = "this is it"


class Search:
    """One search. `run` blocks; when its time is over, the next `run` goes on where it was."""

    def __init__(self, log: LogSettings, topics: Iterable[str], since: int) -> None:
        self._log = log
        self._topics = tuple(topics)
        self._since = since  # milliseconds since the epoch, of the records' own timestamps
        self._left: dict[Partition, tuple[int, int]] | None = None  # next offset, end

    @property
    def is_over(self) -> bool:
        """Whether everything was looked at that was there when the search began."""
        return self._left is not None and not self._left

    def run(self, look: Callable[[Record], Look], seconds: float) -> Record | None:
        """The record that `look` finds; None if there is none, or (not `is_over`) not so far.

        LogError if Kafka does not answer.
        """
        deadline = time.monotonic() + seconds
        consumer = _consumer(self._log)
        try:
            if self._left is None:
                self._left = _bounds(consumer, self._topics, self._since, seconds)
            return self._read(consumer, self._left, look, deadline)
        except KafkaException as error:
            names = ", ".join(self._topics)
            raise LogError(f"cannot search {names}: {error.args[0].str()}") from error
        finally:
            consumer.close()

    def _read(
        self,
        consumer: Consumer,
        left: dict[Partition, tuple[int, int]],
        look: Callable[[Record], Look],
        deadline: float,
    ) -> Record | None:
        consumer.assign([TopicPartition(*at, offset) for at, (offset, _) in left.items()])
        while left and time.monotonic() < deadline:
            first = consumer.poll(_WAIT)
            for message in () if first is None else (first, *consumer.consume(500, 0)):
                at = (message.topic() or "", message.partition() or 0)
                if at not in left:
                    continue
                if (error := message.error()) is not None:
                    if error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    del left[at]
                    continue
                record = Record.of(message)
                seen = look(record)
                if seen is Look.FOUND:
                    return record
                offset, end = record.offset + 1, left[at][1]
                left[at] = (offset, end)
                if seen is Look.NOT_HERE or offset >= end:
                    del left[at]
                    consumer.incremental_unassign([TopicPartition(*at)])
        return None


def _bounds(
    consumer: Consumer, topics: Iterable[str], since: int, seconds: float
) -> dict[Partition, tuple[int, int]]:
    """Per partition that has such records, the first one from the moment on, and the end."""
    known = [
        TopicPartition(topic, partition, since)
        for topic in topics
        for partition in _partitions(consumer, topic, seconds)
    ]
    starts = consumer.offsets_for_times(known, timeout=seconds)
    found: Mapping[Partition, tuple[int, int]] = {
        (each.topic, each.partition): (
            each.offset,
            consumer.get_watermark_offsets(each, timeout=seconds)[1],
        )
        for each in starts
        if each.offset >= 0  # none: all its records are older
    }
    return {at: span for at, span in found.items() if span[0] < span[1]}


def _partitions(consumer: Consumer, topic: str, seconds: float) -> list[int]:
    known = consumer.list_topics(topic, seconds).topics[topic]
    if known.error is not None:
        raise KafkaException(known.error)
    return list(known.partitions)


def _consumer(log: LogSettings) -> Consumer:
    return Consumer(
        client_config(
            log,
            group_id="millstream",  # the client demands one; we neither join it nor commit
            enable_auto_commit=False,
            auto_offset_reset="earliest",  # retention may be faster than the search
            enable_partition_eof=True,
            queued_max_messages_kbytes=4 << 10,
        )
    )
