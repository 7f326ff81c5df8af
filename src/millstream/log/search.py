"""Searches the log for one record from a given time on, in all partitions at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from enum import Enum

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from millstream.errors import LogError
from millstream.log.connection import consumer_config
from millstream.log.consumer import TRANSIENT_ERRORS, Partition, partitions_of
from millstream.log.record import Record
from millstream.log.settings import LogSettings

_POLL_SECONDS = 0.1
_TIMEOUT = 30.0
_LEAST_TIMEOUT = 5.0  # for Kafka to find the offsets of a time


class Decision(Enum):
    """What a search does after a record."""

    CONTINUE = "continue with the next record"
    SKIP_PARTITION = "the record is not in this partition"
    FOUND = "this is the record"


class Search:
    """One search. `run` blocks; when its time is over, the next `run` continues."""

    def __init__(self, log: LogSettings, topics: Iterable[str], since: int) -> None:
        self._log = log
        self._topics = tuple(topics)
        self._since = since  # milliseconds since the epoch, of the records' own timestamps
        self._left: dict[Partition, tuple[int, int]] | None = None  # next offset, end

    @property
    def is_over(self) -> bool:
        """Whether every record was read that existed when the search began."""
        return self._left is not None and not self._left

    def run(self, look: Callable[[Record], Decision], seconds: float) -> Record | None:
        """The record for which `look` says FOUND; None if there is none, or not yet (`is_over`).

        LogError if Kafka does not answer.
        """
        deadline = time.monotonic() + seconds
        consumer = _consumer(self._log)
        try:
            if self._left is None:
                spans = _spans(consumer, dict.fromkeys(self._topics, self._since), deadline)
                self._left = {at: span for at, span in spans.items() if span[0] < span[1]}
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
        look: Callable[[Record], Decision],
        deadline: float,
    ) -> Record | None:
        consumer.assign([TopicPartition(*at, offset) for at, (offset, _) in left.items()])
        while left and time.monotonic() < deadline:
            first = consumer.poll(_POLL_SECONDS)
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
                if seen is Decision.FOUND:
                    return record
                offset, end = record.offset + 1, left[at][1]
                left[at] = (offset, end)
                if seen is Decision.SKIP_PARTITION or offset >= end:
                    del left[at]
                    consumer.incremental_unassign([TopicPartition(*at)])
        return None


def offsets_since(log: LogSettings, since: Mapping[str, int]) -> dict[Partition, int]:
    """Per partition of each topic, the offset of the first record from a time on. Blocks.

    Times are milliseconds since the epoch. LogError if Kafka does not answer.
    """
    consumer = _consumer(log)
    try:
        spans = _spans(consumer, since, time.monotonic() + _TIMEOUT)
        return {at: start for at, (start, _) in spans.items()}
    except KafkaException as error:
        names = ", ".join(since)
        raise LogError(f"cannot look at {names}: {error.args[0].str()}") from error
    finally:
        consumer.close()


def _spans(
    consumer: Consumer, since: Mapping[str, int], deadline: float
) -> dict[Partition, tuple[int, int]]:
    """Per partition, the offset of the first record from the time on, and the end offset."""
    while True:
        try:
            return _ask_spans(consumer, since, max(_LEAST_TIMEOUT, deadline - time.monotonic()))
        except KafkaException as error:
            if error.args[0].code() not in TRANSIENT_ERRORS or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)


def _ask_spans(
    consumer: Consumer, since: Mapping[str, int], seconds: float
) -> dict[Partition, tuple[int, int]]:
    asked = [
        TopicPartition(topic, partition, moment)
        for topic, moment in since.items()
        for partition in partitions_of(consumer, topic, seconds)
    ]
    # The ends first: records that are written meanwhile come after them.
    ends = {
        (each.topic, each.partition): consumer.get_watermark_offsets(each, timeout=seconds)[1]
        for each in asked
    }
    spans = {}
    for each in consumer.offsets_for_times(asked, timeout=seconds):
        if each.error is not None:
            raise KafkaException(each.error)
        end = ends[each.topic, each.partition]
        # No record is that new: the search starts at the end.
        spans[each.topic, each.partition] = (each.offset if each.offset >= 0 else end, end)
    return spans


def _consumer(log: LogSettings) -> Consumer:
    config = consumer_config(
        log,
        auto_offset_reset="earliest",  # retention may delete records during the search
        enable_partition_eof=True,
        queued_max_messages_kbytes=4 << 10,
        fetch_queue_backoff_ms=5,
    )
    return Consumer(config)
