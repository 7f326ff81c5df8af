"""Looking through the log for one record, from a moment on, in all partitions at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from enum import Enum

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from millstream.errors import LogError
from millstream.log.connection import consumer_config
from millstream.log.consumer import PASSING, Partition
from millstream.log.record import Record
from millstream.log.settings import LogSettings

_WAIT = 0.1
_SECONDS = 30.0
_ASK_SECONDS = 5.0  # at least so long is Kafka given to say where a moment is in its topics


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


def offsets_since(log: LogSettings, since: Mapping[str, int]) -> dict[Partition, int]:
    """Per partition of these topics, where its records from that moment on begin; blocks.

    The moments in milliseconds since the epoch. LogError if Kafka does not answer.
    """
    consumer = _consumer(log)
    try:
        spans = _spans(consumer, since, time.monotonic() + _SECONDS)
        return {at: start for at, (start, _) in spans.items()}
    except KafkaException as error:
        names = ", ".join(since)
        raise LogError(f"cannot look at {names}: {error.args[0].str()}") from error
    finally:
        consumer.close()


def _spans(
    consumer: Consumer, since: Mapping[str, int], deadline: float
) -> dict[Partition, tuple[int, int]]:
    """Per partition, the offset of the first record from the moment on, and the end."""
    while True:
        try:
            return _ask_spans(consumer, since, max(_ASK_SECONDS, deadline - time.monotonic()))
        except KafkaException as error:
            if error.args[0].code() not in PASSING or time.monotonic() > deadline:
                raise
            time.sleep(_WAIT)


def _ask_spans(
    consumer: Consumer, since: Mapping[str, int], seconds: float
) -> dict[Partition, tuple[int, int]]:
    asked = [
        TopicPartition(topic, partition, moment)
        for topic, moment in since.items()
        for partition in _partitions(consumer, topic, seconds)
    ]
    # The ends first: what is written meanwhile is after them.
    ends = {
        (each.topic, each.partition): consumer.get_watermark_offsets(each, timeout=seconds)[1]
        for each in asked
    }
    spans = {}
    for each in consumer.offsets_for_times(asked, timeout=seconds):
        if each.error is not None:
            raise KafkaException(each.error)
        end = ends[each.topic, each.partition]
        # None is at or after that moment: whatever comes is after the end.
        spans[each.topic, each.partition] = (each.offset if each.offset >= 0 else end, end)
    return spans


def _partitions(consumer: Consumer, topic: str, seconds: float) -> list[int]:
    known = consumer.list_topics(topic, seconds).topics[topic]
    if known.error is not None:
        raise KafkaException(known.error)
    return list(known.partitions)


def _consumer(log: LogSettings) -> Consumer:
    config = consumer_config(
        log,
        auto_offset_reset="earliest",  # retention may delete records during the search
        enable_partition_eof=True,
        queued_max_messages_kbytes=4 << 10,
        fetch_queue_backoff_ms=5,
    )
    return Consumer(config)
