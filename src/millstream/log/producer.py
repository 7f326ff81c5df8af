"""Writing to the log from asyncio: a record's future is done when the in-sync replicas have it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as KafkaProducer

from millstream.errors import LogError
from millstream.log.connection import client_config
from millstream.log.settings import LogSettings

_BUFFERED_RECORDS = 100_000
_BUFFERED_BYTES = 128 << 20
_MANY = 16  # records that are settled together: from so many on, the loop asks itself
_ASK_SECONDS = 0.001
_QUICK = {"linger.ms": 0, "max.in.flight.requests.per.connection": 1}
_BULK = {"linger.ms": 1}
_CHANGE_SECONDS = 0.2  # several answers of a slow Kafka
_QUIET_ASKS = 100  # without an answer: the thread waits again


class Delivery(NamedTuple):
    """Where a record is now."""

    topic: str
    partition: int
    offset: int


class NotTaken(LogError):
    """A record that Kafka did not take, and why; `code` is librdkafka's."""

    def __init__(self, topic: str, error: KafkaError) -> None:
        super().__init__(f"topic {topic} did not take a record: {error.str()}")
        self.code: int = error.code()
        self.fatal: bool = error.fatal()  # this producer will never send anything again


Outcome = Delivery | NotTaken
Settled = Callable[..., None]  # its last argument is the outcome
_Settlement = tuple[Settled, tuple[object, ...], Outcome]
FOREVER = 2**31 / 1000 - 1  # seconds of patience: as long as librdkafka can count


class Producer:
    """An idempotent producer that belongs to one event loop.

    Order holds per key. While Kafka is away records wait, up to `patience` seconds and the size of
    the buffer. A record whose future failed may be in the log nevertheless: the answer can be what
    got lost.
    """

    def __init__(
        self,
        log: LogSettings,
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        patience: float = 120.0,
        buffered_records: int = _BUFFERED_RECORDS,
        buffered_bytes: int = _BUFFERED_BYTES,
        expects_bursts: bool = False,
    ) -> None:
        """With `expects_bursts`, many records at once share requests; one alone leaves at once."""
        self._loop = loop or asyncio.get_running_loop()
        config = client_config(
            log,
            enable_idempotence=True,  # and with it acks=all
            delivery_timeout_ms=round(patience * 1000),
            queue_buffering_max_messages=buffered_records,
            queue_buffering_max_kbytes=buffered_bytes >> 10,
        )
        # One request under way, and no waiting: what comes meanwhile goes with the next. So a lone
        # record leaves at once, and many share a request: half the client's work.
        self._quick = KafkaProducer({**config, **_QUICK})
        # But the client's thread is woken up by each record of a burst that it does not wait for,
        # sends the first few alone, and polls without pause until it may send the next.
        self._bulk = KafkaProducer({**config, **_BULK}) if expects_bursts else self._quick
        self._kafka = self._quick  # the one in use: the other has nothing under way
        self._settled: deque[_Settlement] = deque()  # filled by whichever thread polls
        self._closing = threading.Event()
        self._asking = 0  # so many times more, if there is no answer; 0: the thread waits for it
        self._is_to_change = False  # the client, as soon as nothing is under way: or order is lost
        self._change_until = 0.0  # others are asked to wait for that
        self._may_wait = threading.Event()
        self._may_wait.set()
        self._poller = threading.Thread(target=self._poll, name="producer", daemon=True)
        self._poller.start()

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: str | bytes | None = None,
        timestamp: int | None = None,
        headers: Mapping[str, str | bytes] | None = None,
    ) -> asyncio.Future[Delivery]:
        """Hand a record over; never blocks. LogError, with retry, when the buffer is full.

        The future fails with LogError when the record was not acknowledged in time. `timestamp` in
        milliseconds since the epoch, now if None.
        """
        future: asyncio.Future[Delivery] = self._loop.create_future()
        self.hand_over(
            topic,
            value,
            key,
            timestamp,
            headers.items() if headers else (),
            _resolve,
            future,
        )
        return future

    def hand_over(
        self,
        topic: str,
        value: bytes | None,
        key: str | bytes | None,
        timestamp: int | None,
        headers: Iterable[tuple[str, str | bytes]],
        settled: Settled,
        *arguments: object,
    ) -> None:
        """As `send`, without a future's cost: `settled(*arguments, outcome)`, in the loop."""
        if self._is_to_change:
            self._change_if_idle()
        try:
            self._kafka.produce(
                topic,
                value,
                key,
                on_delivery=partial(self._delivered, topic, settled, arguments),
                timestamp=timestamp or 0,  # 0: now
                headers=headers if isinstance(headers, list) else list(headers),
            )
        except BufferError:
            raise LogError(
                f"cannot take a record for topic {topic}: {len(self)} wait for Kafka already",
                remedy="send it again in a moment",
            ) from None
        except KafkaException as failure:  # what the client itself sees to be impossible
            self._settled.append((settled, arguments, NotTaken(topic, failure.args[0])))

    def __len__(self) -> int:
        """How many records wait for Kafka's acknowledgement."""
        return len(self._kafka)

    @property
    def is_changing(self) -> bool:
        """Whether the next record had better wait until all before it are settled, if it can."""
        return self._is_to_change and self._loop.time() < self._change_until

    async def flush(self, seconds: float) -> int:
        """Wait until every record is settled, or so many seconds; how many still wait."""
        deadline = self._loop.time() + seconds
        while len(self._kafka) and (left := deadline - self._loop.time()) > 0:
            await asyncio.to_thread(self._kafka.flush, min(left, 0.5))
        self._hand_over()
        return len(self._kafka)

    async def close(self, seconds: float = 10.0) -> None:
        """Flush, then end; what was not acknowledged by then fails with LogError."""
        await self.flush(seconds)
        self._kafka.purge()
        await asyncio.to_thread(self._kafka.flush, 1.0)
        self._closing.set()
        self._may_wait.set()
        await asyncio.to_thread(self._poller.join)
        _settle(self._take_settled())

    def _poll(self) -> None:
        while not self._closing.is_set():
            self._kafka.poll(0.1)
            self._poll_idle()
            self._hand_over()
            self._may_wait.wait()

    def _ask(self) -> None:
        """Settle what is answered by now, in the loop, and ask again soon.

        Kafka's client takes the interpreter for each record that it reports. From a thread of its
        own, with the loop at work, each time is a fight for it.
        """
        if self._closing.is_set():
            return
        self._kafka.poll(0)
        self._poll_idle()
        batch = self._take_settled()
        self._asking = _QUIET_ASKS if batch else self._asking - 1
        _settle(batch)
        if self._asking:
            self._loop.call_later(_ASK_SECONDS, self._ask)
        else:
            self._change_to(self._quick)
            self._change_if_idle()  # or the thread would wait for the other's answers
            self._may_wait.set()

    def _change_to(self, client: KafkaProducer) -> None:
        self._is_to_change = self._kafka is not client
        self._change_until = self._loop.time() + _CHANGE_SECONDS

    def _change_if_idle(self) -> None:
        if self._is_to_change and not len(self._kafka):
            self._kafka = self._bulk if self._asking else self._quick
            self._is_to_change = False

    def _poll_idle(self) -> None:
        # It has nothing to settle, but what it logs waits for somebody as well.
        if self._bulk is not self._quick:
            (self._quick if self._kafka is self._bulk else self._bulk).poll(0)

    def _delivered(
        self,
        topic: str,
        settled: Settled,
        arguments: tuple[object, ...],
        error: KafkaError | None,
        message: Message,
    ) -> None:
        outcome: Outcome
        if error is None:
            outcome = Delivery(topic, message.partition() or 0, message.offset() or 0)
        else:
            outcome = NotTaken(topic, error)
        self._settled.append((settled, arguments, outcome))

    def _hand_over(self) -> None:
        # One wake-up of the loop for all that one poll brought: a wake-up per record costs more
        # than the record.
        batch = self._take_settled()
        if batch and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._settle, batch)

    def _settle(self, batch: list[_Settlement]) -> None:
        if len(batch) >= _MANY and not self._asking and not self._closing.is_set():
            self._asking = _QUIET_ASKS
            self._change_to(self._bulk)
            self._may_wait.clear()
            self._loop.call_later(_ASK_SECONDS, self._ask)
        _settle(batch)

    def _take_settled(self) -> list[_Settlement]:
        batch: list[_Settlement] = []
        with contextlib.suppress(IndexError):  # another thread may take some as well
            while True:
                batch.append(self._settled.popleft())
        return batch


def _settle(batch: list[_Settlement]) -> None:
    for settled, arguments, outcome in batch:
        settled(*arguments, outcome)


def _resolve(future: asyncio.Future[Delivery], outcome: Outcome) -> None:
    if future.done():  # given up by whoever waited
        return
    if isinstance(outcome, NotTaken):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
