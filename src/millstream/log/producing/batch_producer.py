"""Writing many records to the log: a partition's leave in batches, and Kafka answers for each.

While one batch of a partition is under way the next one gathers, as in the collector's journal:
a lone record leaves at once, and many share a request. Where nobody waits for the answer, batches
keep a small distance: a request costs us and Kafka as much as many records. What a record costs
here is a third of what it costs with a client that reports each of them by itself.
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
from millstream.log.producing.asyncio_client import asyncio_config, calm_down
from millstream.log.settings import LogSettings

Headers = list[tuple[str, bytes]]
Fields = tuple[str, bytes, bytes | None, int, Headers]  # topic, value, key, timestamp, headers

# Of a batch; a record that is larger goes alone. Kafka takes a million bytes unless told otherwise,
# and the fewer batches, the less often the loop has to come round for an event to get there.
_LEAST_BYTES, _MOST_BYTES = 32 << 10, 960 << 10
_HANDED_IN = 2  # batches of a partition: an answer takes the loop some turns to get to us
_NO_COMPRESSION = 0
_HEADERS_SIZE = 400  # bytes of a record besides its value, about
# Between batches that nobody waits for: the second if by the first so many bytes have come that a
# few milliseconds are lost in the crowd. One that is large leaves in any case.
_PACE_SECONDS, _BUSY_SECONDS = 0.005, 0.015
_BUSY_BYTES, _LARGE_BYTES = 16 << 10, 256 << 10
_RETRY_SECONDS = 0.2
_END_SECONDS = 0.5  # for an answer that is nearly there
_REQUEST_SECONDS = 30.0  # then a broker that does not answer is asked again

# Nothing of a batch is in the log then, and trying again does not help.
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


class Refused(LogError):
    """Kafka will never take a record, and why."""


class Unclear(LogError):
    """Nobody knows whether records are in the log: only a look there tells. No more are sent."""


class _TakenBack(Exception):
    """A batch was not sent, and waits again."""


class Holder(Protocol):
    """Has the records that were handed over, until they are answered for."""

    waits_for_log: bool  # or somebody does

    def fields(self, index: int) -> Fields:
        """The record at a place: the same each time."""


class Batch:
    """Records of one partition that leave together. `holders` is in their order."""

    __slots__ = ("append", "builder", "holders", "is_awaited", "partition", "size", "topic")

    def __init__(self, topic: str, partition: int, room: int) -> None:
        self.topic = topic
        self.partition = partition
        self.builder = BatchBuilder(room, _NO_COMPRESSION)
        # Place, timestamp, key, value, headers; None if it is full. The builder's own way there
        # costs as much again.
        self.append = self.builder._builder.append
        self.holders: list[tuple[Any, int]] = []  # and the record's place there
        self.size = 0  # bytes, about
        self.is_awaited = False


Answered = Callable[[Batch, int | LogError], None]


class _Partition:
    """Where a partition's records wait."""

    __slots__ = (
        *("gathering", "handed_in", "is_starting", "most", "number", "room", "sent_at", "topic"),
        "waiting",
    )

    def __init__(self, topic: str, number: int) -> None:
        self.topic = topic
        self.number = number
        self.room = _LEAST_BYTES  # of the next batch: memory that is not filled costs, too
        self.most = _MOST_BYTES  # less where Kafka takes less
        self.gathering: Batch | None = None  # comes behind those that wait
        self.waiting: deque[Batch] = deque()
        self.is_starting = False  # a batch is about to be handed in
        # What the client has: the first one is under way, another behind it leaves with its answer.
        self.handed_in: deque[tuple[Batch, MessageBatch]] = deque()
        self.sent_at = 0.0  # by the loop's clock

    @property
    def is_busy(self) -> bool:
        return self.is_starting or bool(self.handed_in)

    @property
    def may_send(self) -> bool:
        """Whether the next batch can be handed in: only a full one, while another is under way."""
        if self.is_starting:
            return False
        return not self.handed_in or (bool(self.waiting) and len(self.handed_in) < _HANDED_IN)


class BatchProducer:
    """An idempotent producer that belongs to one event loop. Made by `open`.

    Order holds per key. While Kafka is away, records wait for it as long as it takes.
    """

    def __init__(
        self, log: LogSettings, topics: Iterable[str], patience: float = _REQUEST_SECONDS
    ) -> None:
        self.answered: Answered = _nobody  # with the first record's offset (-1: not known), or why
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
        self._turn = 0  # of the partition for records without a key
        self._is_sending = False  # in the loop's next turn
        self._timer: asyncio.TimerHandle | None = None  # some are to gather until then
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stale = False  # the client's numbers have a gap: another must take its place
        self._is_renewing = False
        self._is_closed = False

    @classmethod
    async def open(
        cls, log: LogSettings, topics: Iterable[str], patience: float = _REQUEST_SECONDS
    ) -> BatchProducer:
        """A producer that is connected, for topics that exist; waits for Kafka.

        `patience`: seconds before a request is sent again, or a topic counts as gone.
        """
        producer = cls(log, topics, patience)
        try:
            await producer._connect()
        except BaseException:
            await producer.close()
            raise
        return producer

    def add(self, holder: Holder, index: int) -> int:
        """Take a record over, to be sent soon; its size. Never blocks."""
        topic, value, key, timestamp, headers = holder.fields(index)
        places = self._partitions[topic]
        place = places[(crc32(key) if key else self._turn) % len(places)]  # as librdkafka does it
        batch = place.gathering or self._gather(place)
        holders = batch.holders
        if not batch.append(len(holders), timestamp, key, value, headers):
            place.waiting.append(batch)
            place.room = min(2 * place.room, place.most)
            batch = self._gather(place)
            batch.append(0, timestamp, key, value, headers)
            holders = batch.holders
        holders.append((holder, index))
        if holder.waits_for_log and not batch.is_awaited:
            batch.is_awaited = True
            self._send_soon()
        size = len(value) + _HEADERS_SIZE
        batch.size += size
        return size

    async def close(self, seconds: float = 0.0) -> None:
        """Give what is under way so many seconds, then end; nobody is told of the rest."""
        stopping = self._loop.create_task(self._stop_when_done())
        await asyncio.wait([stopping], timeout=seconds)
        self._is_closed = True
        for task in (stopping, *self._tasks):
            task.cancel()
        await asyncio.gather(stopping, *self._tasks, return_exceptions=True)
        await _end(self._client)

    def _gather(self, place: _Partition) -> Batch:
        batch = place.gathering = Batch(place.topic, place.number, place.room)
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
            if left := self._to_gather(place, now):
                pause = min(left, pause or left)
                continue
            if place.waiting:
                batch = place.waiting.popleft()
            else:
                assert place.gathering is not None
                batch, place.gathering = place.gathering, None
                self._turn += 1
                if 4 * batch.size < place.room:
                    place.room = max(place.room // 2, _LEAST_BYTES)
            if not place.waiting and place.gathering is None:
                self._ready.discard(place)
            place.is_starting, place.sent_at = True, now
            self._start(self._send(place, batch))
        if pause and self._timer is None:
            self._timer = self._loop.call_later(pause, self._pause_over)

    def _to_gather(self, place: _Partition, now: float) -> float:
        """For how many seconds more the next batch had better gather; 0: it may leave."""
        batch = place.gathering
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
                await self._know(batch.topic)
                sent = self._hand_in(place, batch)
            finally:
                place.is_starting = False
            outcome = await self._offset_of(batch, sent)
        except _TakenBack:
            await self._renew()
            return
        except kafka.KafkaError as error:
            what = f"topic {batch.topic} did not take a record: {_words(error)}"
            outcome = Refused(what) if isinstance(error, _REFUSED) else Unclear(what)
            outcome.__cause__ = error
            self._is_stale = True
        place.handed_in = deque(each for each in place.handed_in if each[0] is not batch)
        if isinstance(outcome, Refused) and isinstance(outcome.__cause__, _TOO_LARGE):
            self._divide(place, batch, outcome)
        else:
            self.answered(batch, outcome)
        if isinstance(outcome, Unclear):
            self._is_closed = True  # what follows must not come before it
        elif self._is_stale:
            await self._renew()
        elif self._ready:
            self._send_ready()

    def _hand_in(self, place: _Partition, batch: Batch) -> asyncio.Future[Any]:
        """Give a batch to the client, which sends a partition's one after the other."""
        batch.builder._relative_offset = len(batch.holders)
        accumulator = self._client._message_accumulator
        if accumulator._exception is not None:
            raise accumulator._exception
        sent = accumulator._append_batch(
            batch.builder, TopicPartition(batch.topic, batch.partition)
        )
        future: asyncio.Future[Any] = sent.future
        future.add_done_callback(lambda future: self._take_back(place, future))
        place.handed_in.append((batch, sent))
        if place.waiting:
            self._send_soon()
        return future

    def _take_back(self, place: _Partition, done: asyncio.Future[Any]) -> None:
        """After a batch that Kafka did not take, have the client send none that follows it.

        It would not be taken: a number is missing before it. This comes before the client looks for
        what to send next. If it did not, Kafka would refuse, and we would end as `Unclear`.
        """
        if done.cancelled() or done.exception() is None:
            return
        self._is_stale = True
        queue = self._client._message_accumulator._batches
        while place.handed_in and place.handed_in[-1][1] in queue.get(
            key := TopicPartition(place.topic, place.number), ()
        ):
            batch, sent = place.handed_in.pop()
            queue[key].remove(sent)
            if not queue[key]:
                del queue[key]
            place.waiting.appendleft(batch)
            self._ready.add(place)
            sent.future.set_exception(_TakenBack())

    async def _know(self, topic: str) -> None:
        """See how many partitions a topic has: there can be more of them than before."""
        places, known = self._partitions[topic], await self._client.partitions_for(topic)
        if len(known) < len(places):
            raise kafka.UnknownTopicOrPartitionError  # it was made anew, smaller
        places += [_Partition(topic, number) for number in range(len(places), len(known))]

    async def _offset_of(self, batch: Batch, sent: asyncio.Future[Any]) -> int:
        """Wait for the answer as long as the batch's topic exists."""
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

    def _divide(self, place: _Partition, batch: Batch, refused: Refused) -> None:
        """Which record is too large? Kafka refuses all that comes in one batch with it."""
        if len(batch.holders) == 1:
            place.most = _MOST_BYTES  # it was that one
            self.answered(batch, refused)
            return
        place.most = place.room = max(batch.size // 2, _LEAST_BYTES)
        middle = len(batch.holders) // 2
        for half in (batch.holders[middle:], batch.holders[:middle]):
            place.waiting.appendleft(self._rebuild(batch, half))
        self._ready.add(place)

    def _rebuild(self, batch: Batch, holders: list[tuple[Holder, int]]) -> Batch:
        again = Batch(batch.topic, batch.partition, _MOST_BYTES)
        for place, (holder, index) in enumerate(holders):
            _, value, key, timestamp, headers = holder.fields(index)
            again.append(place, timestamp, key, value, headers)
            again.size += len(value) + _HEADERS_SIZE
        again.holders = holders
        return again

    async def _renew(self) -> None:
        """Go on with another client, as soon as nothing is under way.

        An idempotent client numbers what it sends to a partition. After a batch that Kafka refused,
        it would refuse all that follow, too: a number is missing.
        """
        is_busy = any(place.is_busy for places in self._partitions.values() for place in places)
        if is_busy or self._is_closed or self._is_renewing:
            return  # the last of them comes here, too
        self._is_renewing = True
        await _end(self._client)
        self._client = self._make_client()
        await self._connect()
        self._is_stale = self._is_renewing = False
        self._send_ready()

    def _make_client(self) -> AIOKafkaProducer:
        calm_down()
        client = AIOKafkaProducer(**self._config)
        # Its batches would expire while a partition has no leader, whether they were sent or not.
        client._message_accumulator._batch_ttl = math.inf
        return client

    async def _connect(self) -> None:
        while True:
            try:
                await self._client.start()
                for topic, places in self._partitions.items():
                    if not places:
                        await self._know(topic)
                return
            except kafka.KafkaError as error:
                _log.warning("cannot connect to Kafka: %s; trying again", _words(error))
                await _end(self._client)
                await asyncio.sleep(_RETRY_SECONDS)
                self._client = self._make_client()

    async def _stop_when_done(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)


async def _end(client: AIOKafkaProducer) -> None:
    """Close it without waiting for what it has under way: while Kafka is away, that is for ever."""
    client._closed = True  # or it complains when it is forgotten
    closing = asyncio.create_task(client._sender.close())
    await asyncio.wait([closing], timeout=_END_SECONDS)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    await client.client.close()


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _nobody(batch: Batch, outcome: int | LogError) -> None:
    raise LogError("nobody takes Kafka's answers")
