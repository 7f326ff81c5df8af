"""Writes many records to the log in batches; Kafka acknowledges each batch.

While one batch of a partition is in flight, the next one fills, as in the collector's journal: a
single record is sent at once, and many share a request. If no caller waits for the result, batches
are sent a few milliseconds apart, because a request costs as much as many records. A record costs a
third of what it costs with a client that reports on each record.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol
from zlib import crc32

from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka
from aiokafka.producer.message_accumulator import BatchBuilder, MessageBatch
from aiokafka.structs import TopicPartition

from millstream.errors import LogError
from millstream.log.producing.asyncio_client import asyncio_config, limit_repeats
from millstream.log.settings import LogSettings

Headers = list[tuple[str, bytes]]
Fields = tuple[str, bytes, bytes | None, int, Headers]  # topic, value, key, timestamp, headers

# Of a batch; a larger record is sent alone. Kafka accepts a million bytes by default, and fewer
# batches need fewer turns of the event loop.
_LEAST_BYTES, _MOST_BYTES = 32 << 10, 960 << 10
_IN_CLIENT = 2  # batches of a partition: a result needs some turns of the loop to reach us
_NO_COMPRESSION = 0
_HEADERS_SIZE = 400  # bytes of a record besides its value, roughly
# Pause between batches for whose result no caller waits. The longer pause applies if the batch has
# grown beyond _BUSY_BYTES after the shorter one. A batch above _LARGE_BYTES is sent at once.
_PACE_SECONDS, _BUSY_SECONDS = 0.005, 0.015
_BUSY_BYTES, _LARGE_BYTES = 16 << 10, 256 << 10
_RETRY_SECONDS = 0.2
_CLOSE_SECONDS = 0.5  # for a result that is nearly there
_REQUEST_SECONDS = 30.0  # then a request without an answer is sent again

# After these errors nothing of a batch is in the log, and a retry does not help.
_TOO_LARGE = (kafka.MessageSizeTooLargeError, kafka.RecordListTooLargeError)
_REFUSED = (
    *_TOO_LARGE,
    kafka.InvalidTimestampError,
    kafka.InvalidTopicError,
    kafka.PolicyViolationError,
    kafka.TopicAuthorizationFailedError,
    kafka.UnknownTopicOrPartitionError,
)

_log = logging.getLogger(__name__)


class RecordRefused(LogError):
    """Kafka refuses a record for good."""


class OutcomeUnknown(LogError):
    """It is unknown whether records are in the log: it must be searched. No more are sent."""


class _Requeued(Exception):
    """A batch was not sent, and is back in its queue."""


class PendingRecords(Protocol):
    """Keeps records that were added to the producer until their result is known."""

    waits_for_log: bool  # whether a caller waits for the result

    def fields(self, index: int) -> Fields:
        """The fields of one record: the same at each call."""


class Batch:
    """Records of one partition that are sent together."""

    __slots__ = ("append", "builder", "is_awaited", "partition", "records", "size", "topic")

    def __init__(self, topic: str, partition: int, room: int) -> None:
        self.topic = topic
        self.partition = partition
        self.builder = BatchBuilder(room, _NO_COMPRESSION)
        # Arguments: place, timestamp, key, value, headers; returns None if the batch is full. The
        # builder's public method takes twice as long.
        self.append = self.builder._builder.append
        self.records: list[tuple[Any, int]] = []  # PendingRecords, and the index there
        self.size = 0  # bytes, roughly
        self.is_awaited = False


OnResult = Callable[[Batch, int | LogError], None]


class _Partition:
    """The queue of one partition."""

    __slots__ = (
        "filling",
        "in_client",
        "is_starting",
        "most",
        "number",
        "room",
        "sent_at",
        "topic",
        "waiting",
    )

    def __init__(self, topic: str, number: int) -> None:
        self.topic = topic
        self.number = number
        self.room = _LEAST_BYTES  # of the next batch; unused memory costs, too
        self.most = _MOST_BYTES  # less if Kafka accepts less
        self.filling: Batch | None = None  # sent after those that wait
        self.waiting: deque[Batch] = deque()
        self.is_starting = False  # a batch is about to be given to the client
        # Given to the client: the first is in flight, the next one is sent after its result.
        self.in_client: deque[tuple[Batch, MessageBatch]] = deque()
        self.sent_at = 0.0  # by the loop's clock

    @property
    def is_busy(self) -> bool:
        return self.is_starting or bool(self.in_client)

    @property
    def may_send(self) -> bool:
        """Whether the next batch can be sent: while another one is in flight, only a full one."""
        if self.is_starting:
            return False
        return not self.in_client or (bool(self.waiting) and len(self.in_client) < _IN_CLIENT)


class BatchProducer:
    """An idempotent producer that belongs to one event loop. Call `connect` first.

    Records of one key stay in order. While Kafka is down, records wait without a limit.
    """

    def __init__(
        self,
        log: LogSettings,
        topics: Iterable[str],
        on_result: OnResult,
        patience: float = _REQUEST_SECONDS,
    ) -> None:
        """`on_result` gets each batch, and its first record's offset (-1: unknown) or an error.

        `patience`: seconds until a request is sent again, or a topic counts as deleted.
        """
        self._on_result = on_result
        self._config = asyncio_config(
            log,
            enable_idempotence=True,
            acks="all",
            request_timeout_ms=round(patience * 1000),
        )
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._client = self._make_client()
        self._partitions: dict[str, list[_Partition]] = {topic: [] for topic in topics}
        self._ready: set[_Partition] = set()  # with something to send
        self._turn = 0  # chooses the partition of records without a key
        self._is_sending = False  # in the loop's next turn
        self._timer: asyncio.TimerHandle | None = None  # until batches have filled a while
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stale = False  # the client's sequence numbers have a gap: it must be replaced
        self._is_replacing = False
        self._is_closed = False

    async def connect(self) -> None:
        """Connect to Kafka, which has the topics; waits for it. If cancelled, it is closed."""
        try:
            await self._connect()
        except BaseException:
            await self.close()
            raise

    def add(self, owner: PendingRecords, index: int) -> int:
        """Add a record, to be sent soon; returns its size. Never blocks."""
        topic, value, key, timestamp, headers = owner.fields(index)
        places = self._partitions[topic]
        place = places[(crc32(key) if key else self._turn) % len(places)]  # as librdkafka does it
        batch = place.filling or self._start_batch(place)
        records = batch.records
        if not batch.append(len(records), timestamp, key, value, headers):
            place.waiting.append(batch)
            place.room = min(2 * place.room, place.most)
            batch = self._start_batch(place)
            batch.append(0, timestamp, key, value, headers)
            records = batch.records
        records.append((owner, index))
        if owner.waits_for_log and not batch.is_awaited:
            batch.is_awaited = True
            self._send_soon()
        size = len(value) + _HEADERS_SIZE
        batch.size += size
        return size

    async def close(self, seconds: float = 0.0) -> None:
        """Wait up to `seconds` for batches in flight, then close; the rest gets no result."""
        stopping = self._loop.create_task(self._stop_when_done())
        await asyncio.wait([stopping], timeout=seconds)
        self._is_closed = True
        for task in (stopping, *self._tasks):
            task.cancel()
        await asyncio.gather(stopping, *self._tasks, return_exceptions=True)
        await _close_client(self._client)

    def _start_batch(self, place: _Partition) -> Batch:
        batch = place.filling = Batch(place.topic, place.number, place.room)
        self._ready.add(place)
        self._send_soon()
        return batch

    def _send_soon(self) -> None:
        if not self._is_sending:
            self._is_sending = True
            self._loop.call_soon(self._send_ready)

    def _send_ready(self) -> None:
        self._is_sending = False
        if self._is_stale or self._is_closed:
            return
        now, pause = self._loop.time(), 0.0
        for place in [each for each in self._ready if each.may_send]:
            if left := self._seconds_to_fill(place, now):
                pause = min(left, pause or left)
                continue
            if place.waiting:
                batch = place.waiting.popleft()
            else:
                assert place.filling is not None
                batch, place.filling = place.filling, None
                self._turn += 1
                if 4 * batch.size < place.room:
                    place.room = max(place.room // 2, _LEAST_BYTES)
            if not place.waiting and place.filling is None:
                self._ready.discard(place)
            place.is_starting, place.sent_at = True, now
            self._start(self._send(place, batch))
        if pause and self._timer is None:
            self._timer = self._loop.call_later(pause, self._pause_over)

    def _seconds_to_fill(self, place: _Partition, now: float) -> float:
        """For how many seconds more the next batch should fill; 0: it can be sent."""
        batch = place.filling
        if place.waiting or batch is None or batch.is_awaited or batch.size > _LARGE_BYTES:
            return 0.0
        left = place.sent_at + _PACE_SECONDS - now
        if left <= 0 and batch.size > _BUSY_BYTES:
            left = place.sent_at + _BUSY_SECONDS - now
        return max(0.0, left)

    def _pause_over(self) -> None:
        self._timer = None
        self._send_ready()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, place: _Partition, batch: Batch) -> None:
        outcome: int | LogError
        try:
            try:
                await self._look_up_partitions(batch.topic)
                sent = self._give_to_client(place, batch)
            finally:
                place.is_starting = False
            outcome = await self._await_offset(batch, sent)
        except _Requeued:
            await self._replace_client()
            return
        except kafka.KafkaError as error:
            what = f"topic {batch.topic} did not take a record: {_words(error)}"
            outcome = RecordRefused(what) if isinstance(error, _REFUSED) else OutcomeUnknown(what)
            outcome.__cause__ = error
            self._is_stale = True
        place.in_client = deque(each for each in place.in_client if each[0] is not batch)
        if isinstance(outcome, RecordRefused) and isinstance(outcome.__cause__, _TOO_LARGE):
            self._split(place, batch, outcome)
        else:
            self._on_result(batch, outcome)
        if isinstance(outcome, OutcomeUnknown):
            self._is_closed = True  # what follows must not come before it
        elif self._is_stale:
            await self._replace_client()
        elif self._ready:
            self._send_ready()

    def _give_to_client(self, place: _Partition, batch: Batch) -> asyncio.Future[Any]:
        """Give a batch to the client, which sends a partition's batches one after the other."""
        batch.builder._relative_offset = len(batch.records)
        accumulator = self._client._message_accumulator
        if accumulator._exception is not None:
            raise accumulator._exception
        sent = accumulator._append_batch(
            batch.builder, TopicPartition(batch.topic, batch.partition)
        )
        future: asyncio.Future[Any] = sent.future
        future.add_done_callback(lambda future: self._requeue_after_error(place, future))
        place.in_client.append((batch, sent))
        if place.waiting:
            self._send_soon()
        return future

    def _requeue_after_error(self, place: _Partition, done: asyncio.Future[Any]) -> None:
        """After a batch that Kafka refused, take the batches behind it back from the client.

        Kafka would refuse them, because a sequence number is missing. This runs before the client
        chooses the next batch; otherwise the result would be `OutcomeUnknown`.
        """
        if done.cancelled() or done.exception() is None:
            return
        self._is_stale = True
        queue = self._client._message_accumulator._batches
        while place.in_client and place.in_client[-1][1] in queue.get(
            key := TopicPartition(place.topic, place.number), ()
        ):
            batch, sent = place.in_client.pop()
            queue[key].remove(sent)
            if not queue[key]:
                del queue[key]
            place.waiting.appendleft(batch)
            self._ready.add(place)
            sent.future.set_exception(_Requeued())

    async def _look_up_partitions(self, topic: str) -> None:
        """Look up the partitions of a topic: it can have more than before."""
        places, known = self._partitions[topic], await self._client.partitions_for(topic)
        if len(known) < len(places):
            raise kafka.UnknownTopicOrPartitionError  # it was recreated with fewer
        places += [_Partition(topic, number) for number in range(len(places), len(known))]

    async def _await_offset(self, batch: Batch, sent: asyncio.Future[Any]) -> int:
        """Wait for the result as long as the batch's topic exists."""
        while not (await asyncio.wait([sent], timeout=self._patience))[0]:
            if await self._is_gone(batch.topic):
                raise kafka.UnknownTopicOrPartitionError
        return int(sent.result().offset)

    async def _is_gone(self, topic: str) -> bool:
        try:
            cluster = await self._client.client.fetch_all_metadata()
        except kafka.KafkaError:
            return False
        return topic not in cluster.topics()

    def _split(self, place: _Partition, batch: Batch, refused: RecordRefused) -> None:
        """Split a batch that is too large in halves, to find the record that Kafka refuses."""
        if len(batch.records) == 1:
            place.most = _MOST_BYTES
            self._on_result(batch, refused)
            return
        place.most = place.room = max(batch.size // 2, _LEAST_BYTES)
        middle = len(batch.records) // 2
        for half in (batch.records[middle:], batch.records[:middle]):
            place.waiting.appendleft(self._rebuild(batch, half))
        self._ready.add(place)

    def _rebuild(self, batch: Batch, records: list[tuple[PendingRecords, int]]) -> Batch:
        again = Batch(batch.topic, batch.partition, _MOST_BYTES)
        for place, (owner, index) in enumerate(records):
            _, value, key, timestamp, headers = owner.fields(index)
            again.append(place, timestamp, key, value, headers)
            again.size += len(value) + _HEADERS_SIZE
        again.records = records
        return again

    async def _replace_client(self) -> None:
        """Replace the client as soon as nothing is in flight.

        An idempotent client numbers its batches per partition. After a refused batch a number is
        missing, and Kafka would refuse all batches that follow.
        """
        is_busy = any(place.is_busy for places in self._partitions.values() for place in places)
        if is_busy or self._is_closed or self._is_replacing:
            return  # the last batch in flight calls this again
        self._is_replacing = True
        await _close_client(self._client)
        self._client = self._make_client()
        await self._connect()
        self._is_stale = self._is_replacing = False
        self._send_ready()

    def _make_client(self) -> AIOKafkaProducer:
        limit_repeats()
        client = AIOKafkaProducer(**self._config)
        # Otherwise batches would expire while a partition has no leader, sent or not.
        client._message_accumulator._batch_ttl = math.inf
        return client

    async def _connect(self) -> None:
        while True:
            try:
                await self._client.start()
                for topic, places in self._partitions.items():
                    if not places:
                        await self._look_up_partitions(topic)
                return
            except kafka.KafkaError as error:
                _log.warning("cannot connect to Kafka: %s; trying again", _words(error))
                await _close_client(self._client)
                await asyncio.sleep(_RETRY_SECONDS)
                self._client = self._make_client()

    async def _stop_when_done(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)


async def _close_client(client: AIOKafkaProducer) -> None:
    """Close a client without waiting for batches in flight: Kafka may be down for ever."""
    client._closed = True  # otherwise it warns when it is deleted
    closing = asyncio.create_task(client._sender.close())
    await asyncio.wait([closing], timeout=_CLOSE_SECONDS)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    await client.client.close()


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
