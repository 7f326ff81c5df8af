"""Reads a group's topics as a member of a Kafka consumer group, in a thread.

Kafka assigns the topics' partitions to the servers that have members of the group, and stores the
committed offsets. The `range` assignor orders the servers by name, and gives the first partition of
both topics, the source's and that of messages to be sent again, to the first one. So no server owns
only the second topic. Our names begin with the time of joining: a server that joins later never
takes the only partition away.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from millstream.log.connection import consumer_config
from millstream.log.consumer import Partition
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.values.clock import now_ms

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.1
_COMMIT_SECONDS = 1.0
_RETRY_SECONDS = 1.0
_BATCH = 500
_SESSION_MS = 6_000  # a server that was killed is replaced after this time
_TIMEOUT = 10.0
T = TypeVar("T")


class CommittedOffset(NamedTuple):
    """An offset in Kafka, with a text that describes it."""

    offset: int
    metadata: str


class Owner(Protocol):
    """What the partitions of this server are for. Everything is called in the event loop."""

    async def assigned(
        self, committed: Mapping[Partition, CommittedOffset | None]
    ) -> Mapping[Partition, int]:
        """These are all partitions of this server from now on; returns where to read each."""

    async def revoking(self) -> None:
        """All partitions are about to go. Returns when nothing is in flight, or after a while."""

    async def revoked(self) -> None:
        """Nothing is ours any more."""

    async def take(self, records: Sequence[Record]) -> None:
        """The next records, in order per partition."""

    async def skip_to(self, ends: Mapping[Partition, int]) -> None:
        """No record is below these offsets any more: what is there are ends of transactions."""

    async def positions(self) -> Mapping[Partition, CommittedOffset]:
        """What to commit now."""

    def is_full(self, partition: Partition) -> bool:
        """Whether reading this partition should pause. May be called in any thread."""


class GroupConsumer:
    """One server's part in a Kafka consumer group; it joins at once and leaves with `close`."""

    def __init__(
        self, log: LogSettings, group_id: str, topics: Sequence[str], owner: Owner
    ) -> None:
        self._config = consumer_config(
            log,
            group_id=group_id,
            client_id=f"millstream-{now_ms():015d}",
            auto_offset_reset="earliest",
            partition_assignment_strategy="range",
            session_timeout_ms=_SESSION_MS,
            heartbeat_interval_ms=_SESSION_MS // 4,
            enable_partition_eof=True,
        )
        self._topics = list(topics)
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._closing = threading.Event()
        self._assigned: set[Partition] = set()
        self._paused: set[Partition] = set()
        self._committed: dict[Partition, CommittedOffset] = {}
        self._thread = threading.Thread(target=self._run, name=group_id, daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Commit and leave the group; returns when that is done."""
        self._closing.set()
        await asyncio.to_thread(self._thread.join, _TIMEOUT)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._consume()
            except KafkaException as error:
                _log.warning("%s: %s", self._thread.name, error.args[0].str())
            except (RuntimeError, concurrent.futures.CancelledError):
                if self._loop.is_closed():
                    return
                _log.exception("%s: starts again", self._thread.name)
            self._closing.wait(_RETRY_SECONDS)

    def _consume(self) -> None:
        consumer = Consumer(self._config)
        try:
            consumer.subscribe(
                self._topics, on_assign=self._assign, on_revoke=self._revoke, on_lost=self._lose
            )
            next_commit = time.monotonic() + _COMMIT_SECONDS
            while not self._closing.is_set():
                self._pause_full(consumer)
                self._read(consumer)
                if time.monotonic() >= next_commit:
                    self._commit(consumer)
                    next_commit = time.monotonic() + _COMMIT_SECONDS
        finally:
            consumer.close()  # revokes the partitions first
            if self._assigned:  # it ended with an error
                self._forget()

    def _read(self, consumer: Consumer) -> None:
        # consume() alone would wait for a full batch: poll for the first, then drain the queue.
        first = consumer.poll(_POLL_SECONDS)
        if first is None:
            return
        messages = [first, *consumer.consume(_BATCH - 1, 0)]
        records = [Record.of(message) for message in messages if message.error() is None]
        if records:
            self._call(self._owner.take(records))
        ends: dict[Partition, int] = {}
        for message in messages:
            error = message.error()
            if error is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                ends[message.topic() or "", message.partition() or 0] = message.offset() or 0
            else:
                _log.warning("%s: %s", self._thread.name, error.str())
        if ends:
            self._call(self._owner.skip_to(ends))

    def _pause_full(self, consumer: Consumer) -> None:
        full = {each for each in self._assigned if self._owner.is_full(each)}
        if wanted := full - self._paused:
            consumer.pause([TopicPartition(*each) for each in wanted])
        if unwanted := (self._paused & self._assigned) - full:
            consumer.resume([TopicPartition(*each) for each in unwanted])
        self._paused = full

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        committed: dict[Partition, CommittedOffset | None] = {}
        for each in consumer.committed(partitions, _TIMEOUT) if partitions else ():
            if each.error is not None:
                raise KafkaException(each.error)
            known = CommittedOffset(each.offset, each.metadata or "") if each.offset >= 0 else None
            committed[each.topic, each.partition] = known
        starts = self._call(self._owner.assigned(committed))
        self._assigned, self._paused, self._committed = set(starts), set(), {}
        consumer.assign([TopicPartition(*each, offset) for each, offset in starts.items()])

    def _revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._call(self._owner.revoking())
        self._commit(consumer)
        self._forget()

    def _lose(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._forget()  # others own them already: a commit would be refused

    def _forget(self) -> None:
        self._assigned = set()
        self._call(self._owner.revoked())

    def _commit(self, consumer: Consumer) -> None:
        positions = self._call(self._owner.positions())
        changed = {
            each: position
            for each, position in positions.items()
            if self._committed.get(each) != position and each in self._assigned
        }
        if not changed:
            return
        try:
            consumer.commit(offsets=_offsets(changed), asynchronous=False)
        except KafkaException as error:
            # The next commit includes it. If the partition is another server's by now, that one
            # delivers again what was handled here since the last commit.
            _log.log(_level(error), "%s: cannot commit: %s", self._thread.name, error)
            return
        self._committed |= changed

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the event loop, and wait for it."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except RuntimeError:
            work.close()
            raise


def _offsets(positions: Mapping[Partition, CommittedOffset]) -> list[TopicPartition]:
    return [
        TopicPartition(*each, position.offset, position.metadata)
        for each, position in positions.items()
    ]


def _level(error: KafkaException) -> int:
    usual: Collection[int] = (
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
    )
    return logging.INFO if error.args[0].code() in usual else logging.WARNING
