"""Writes records from asyncio: a record's future is done when the in-sync replicas have it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as KafkaProducer

from millstream.errors import LogError
from millstream.log.connection import client_config
from millstream.log.settings import LogSettings

_BUFFERED_RECORDS = 100_000
_BUFFERED_BYTES = 128 << 20


class RecordMetadata(NamedTuple):
    """Where a record is in the log."""

    topic: str
    partition: int
    offset: int


class DeliveryFailed(LogError):
    """Kafka did not acknowledge a record; `code` is librdkafka's."""

    def __init__(self, topic: str, error: KafkaError) -> None:
        super().__init__(f"topic {topic} did not take a record: {error.str()}")
        self.code: int = error.code()
        self.fatal: bool = error.fatal()  # this producer cannot send any more


_Outcome = RecordMetadata | DeliveryFailed
FOREVER = 2**31 / 1000 - 1  # seconds of patience: as long as librdkafka can count


class Producer:
    """An idempotent producer that belongs to one event loop; for many records: `BatchProducer`.

    Records of one key stay in order. While Kafka is down, records wait for up to `patience`
    seconds, as long as the buffer has room. A record whose future failed may still be in the log:
    perhaps only the acknowledgement was lost.
    """

    def __init__(
        self,
        log: LogSettings,
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        patience: float = 120.0,
    ) -> None:
        self._loop = loop or asyncio.get_running_loop()
        # One request in flight, and no linger: records that come meanwhile share the next request.
        # So a single record is sent at once, and many cost half the client's work.
        self._kafka = KafkaProducer(
            client_config(
                log,
                enable_idempotence=True,  # and with it acks=all
                linger_ms=0,
                max_in_flight_requests_per_connection=1,
                delivery_timeout_ms=round(patience * 1000),
                queue_buffering_max_messages=_BUFFERED_RECORDS,
                queue_buffering_max_kbytes=_BUFFERED_BYTES >> 10,
            )
        )
        # Filled by whichever thread polls.
        self._settled: deque[tuple[asyncio.Future[RecordMetadata], _Outcome]] = deque()
        self._closing = threading.Event()
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
    ) -> asyncio.Future[RecordMetadata]:
        """Send a record; never blocks. LogError if the buffer is full.

        The future fails with LogError if the record was not acknowledged in time. `timestamp` is in
        milliseconds since the epoch; None means now.
        """
        future: asyncio.Future[RecordMetadata] = self._loop.create_future()
        try:
            self._kafka.produce(
                topic,
                value,
                key,
                on_delivery=partial(self._delivered, topic, future),
                timestamp=timestamp or 0,  # 0: now
                headers=list(headers.items()) if headers else [],
            )
        except BufferError:
            raise LogError(
                f"cannot send a record to topic {topic}: {len(self)} are waiting for Kafka",
                remedy="send it again in a moment",
            ) from None
        except KafkaException as failure:  # the client itself refuses it
            future.set_exception(DeliveryFailed(topic, failure.args[0]))
        return future

    def __len__(self) -> int:
        """The number of records that Kafka has not acknowledged yet."""
        return len(self._kafka)

    async def flush(self, seconds: float) -> int:
        """Wait until every record is acknowledged or failed; returns how many still wait."""
        deadline = self._loop.time() + seconds
        while len(self._kafka) and (left := deadline - self._loop.time()) > 0:
            await asyncio.to_thread(self._kafka.flush, min(left, 0.5))
        return len(self._kafka)

    async def close(self, seconds: float = 10.0) -> None:
        """Flush, then close; records that were not acknowledged fail with LogError."""
        await self.flush(seconds)
        self._kafka.purge()
        await asyncio.to_thread(self._kafka.flush, 1.0)
        self._closing.set()
        await asyncio.to_thread(self._poller.join)
        self._settle()

    def _poll(self) -> None:
        while not self._closing.is_set():
            self._kafka.poll(0.1)
            # One wake-up of the loop per poll: a wake-up per record costs more than the record.
            if self._settled and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._settle)

    def _delivered(
        self,
        topic: str,
        future: asyncio.Future[RecordMetadata],
        error: KafkaError | None,
        message: Message,
    ) -> None:
        outcome: _Outcome
        if error is None:
            outcome = RecordMetadata(topic, message.partition() or 0, message.offset() or 0)
        else:
            outcome = DeliveryFailed(topic, error)
        self._settled.append((future, outcome))

    def _settle(self) -> None:
        with contextlib.suppress(IndexError):  # a thread may add to it meanwhile
            while True:
                _resolve(*self._settled.popleft())


def _resolve(future: asyncio.Future[RecordMetadata], outcome: _Outcome) -> None:
    if future.done():  # cancelled by the caller
        return
    if isinstance(outcome, DeliveryFailed):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
