"""From bytes to the log: check, number, hand to Kafka, and know when Kafka has it.

Every event that is looked at gets the collector's next sequence number and goes to one of two
topics: its stream's, or its stream's rejected one. Within one start of the collector the numbers
have no gaps but those that Kafka did not confirm, whose senders were told so. (A journal, which
would make numbers and events survive a restart, is not part of this tier yet.)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import lru_cache, partial

from millstream import event
from millstream.app import App
from millstream.collect.lane import Headers, Lane
from millstream.collect.settings import CollectSettings
from millstream.errors import InvalidEvent, LogError
from millstream.log.producer import Delivery, Producer
from millstream.measure import Clock

_EVENTS_PER_TURN = 500  # some 5 ms of work; a larger batch lets other requests in between
_SWEEP_SECONDS = 0.1
LARGEST_EVENT = 900_000  # Kafka's own limit is a million, for key, value and headers together
_KEPT_OF_TOO_LARGE = 1000  # bytes, in the rejected topic
_GRACE_SECONDS = 2.0  # the producer gives up first, and then knows more than that time has passed


class Overloaded(LogError):
    """Too much is pending at Kafka to take in more."""


class Batch:
    """Events that came together, on their way to the log. Lists are by the events' place in it."""

    __slots__ = ("deliveries", "lane", "open", "outcome", "received", "rejections", "sequences")

    def __init__(
        self, lane: Lane, size: int, received: float, outcome: asyncio.Future[None]
    ) -> None:
        self.lane = lane
        self.received = received
        self.open = size
        self.outcome = outcome  # done when Kafka has settled every event, or nobody waits any more
        self.sequences = [0] * size
        self.deliveries: list[Delivery | None] = [None] * size  # None: not (yet) confirmed
        self.rejections: dict[int, InvalidEvent] = {}

    def unconfirmed(self) -> list[int]:
        """The places of the events that Kafka has not confirmed."""
        return [index for index, delivery in enumerate(self.deliveries) if delivery is None]


class Intake:
    """Where all events of one collector go in. Belongs to one event loop."""

    def __init__(
        self,
        app: App,
        settings: CollectSettings,
        producer: Producer,
        collector: str,
        clock: Clock = time.monotonic,
    ) -> None:
        self.lanes = {s.name: Lane(app, s, collector, clock) for s in app.streams.values()}
        self.collector = collector
        self.sequence = 0
        self.pending_bytes = 0
        self.pending_events = 0
        self._settings = settings
        self._producer = producer
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Batch, None] = {}  # in the order in which they came
        self._room = asyncio.Event()
        self._room.set()

    async def take(
        self,
        lane: Lane,
        events: list[bytes],
        *,
        source: str = "",
        traceparent: str = "",
        producer: Producer | None = None,
    ) -> Batch:
        """Check events and hand them to Kafka; Overloaded, with nothing taken, if it is behind."""
        size, length = len(events), sum(map(len, events))
        self._reserve(lane, size, length)
        batch = Batch(lane, size, self._clock(), self._loop.create_future())
        send = (producer or self._producer).send
        now = time.time_ns() // 1_000_000
        headers = _headers(lane, now, source, traceparent)
        index = -1
        try:
            for index, value in enumerate(events):
                # A source's message is taken in one turn: cancelled half-way, a part would be lost.
                if index and index % _EVENTS_PER_TURN == 0 and producer is None:
                    await asyncio.sleep(0)
                self._send(send, batch, index, value, now, headers, length)
        except BaseException:
            for rest in range(index, size):  # or what they reserved would stay taken for ever
                self._settled(batch, rest, length, None)
            raise
        return batch

    async def confirmed(self, batch: Batch) -> None:
        """Return when Kafka has settled every event; LogError if it does not in time."""
        self._waiting[batch] = None
        try:
            await batch.outcome
        finally:
            del self._waiting[batch]

    async def room(self) -> None:
        """Wait until less than half of what may be pending is."""
        await self._room.wait()

    async def watch(self) -> None:
        """Let no request wait longer than the settings say; runs as long as the tier does."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            overdue = self._clock() - self._settings.ack_timeout - _GRACE_SECONDS
            self._give_up(
                [batch for batch in self._waiting if batch.received <= overdue],
                f"Kafka did not confirm the events within {self._settings.ack_timeout:g} s",
            )

    def give_up(self) -> None:
        """Let nobody wait any more: the collector stops."""
        self._give_up(self._waiting, "the collector stops before Kafka confirmed the events")

    def _give_up(self, batches: Iterable[Batch], why: str) -> None:
        for batch in batches:
            if not batch.outcome.done():
                batch.outcome.set_exception(LogError(why))

    def _reserve(self, lane: Lane, size: int, length: int) -> None:
        settings = self._settings
        if (
            self.pending_bytes + length > settings.max_pending_bytes
            or self.pending_events + size > max(settings.max_pending_events, size)
        ):
            lane.refused += size
            raise Overloaded(
                f"cannot take in more events: {self.pending_events} of "
                f"{self.pending_bytes} bytes wait for Kafka already"
            )
        self.pending_bytes += length
        self.pending_events += size
        lane.pending += size
        if not self._is_roomy():
            self._room.clear()

    def _send(
        self,
        send: Callable[..., asyncio.Future[Delivery]],
        batch: Batch,
        index: int,
        value: bytes,
        now: int,
        headers: Headers,
        length: int,
    ) -> None:
        lane, sequence = batch.lane, self.sequence + 1
        try:
            key, topic = _checked_key(lane, value), lane.topic
            own: Headers = {}
        except InvalidEvent as invalid:
            batch.rejections[index] = invalid
            key, topic = None, lane.rejected_topic
            own = {event.REASON: str(invalid), event.FIELD: invalid.field}
            value = value[:_KEPT_OF_TOO_LARGE] if len(value) > LARGEST_EVENT else value
            lane.pending -= 1
        numbered = {
            **headers,
            event.ID: f"{self.collector}-{sequence}",
            event.SEQUENCE: str(sequence),
            event.FINGERPRINT: event.fingerprint(value),
            **own,
        }
        try:
            future = send(topic, value, key=key, timestamp=now, headers=numbered)
        except LogError:
            self._settled(batch, index, length, None)
            return
        self.sequence = batch.sequences[index] = sequence
        future.add_done_callback(partial(self._settled, batch, index, length))

    def _settled(
        self, batch: Batch, index: int, length: int, future: asyncio.Future[Delivery] | None
    ) -> None:
        if future is not None and not future.cancelled() and future.exception() is None:
            batch.deliveries[index] = future.result()
        batch.open -= 1
        if batch.open == 0:
            self._finish(batch, length)

    def _finish(self, batch: Batch, length: int) -> None:
        lane, size, rejected = batch.lane, len(batch.deliveries), len(batch.rejections)
        logged = size - rejected
        lane.pending -= logged
        if None in batch.deliveries:
            unconfirmed = batch.unconfirmed()
            lost = sum(index in batch.rejections for index in unconfirmed)
            logged -= len(unconfirmed) - lost
            rejected -= lost
            lane.unconfirmed += len(unconfirmed)
        lane.logged += logged
        lane.rejected += rejected
        if logged:
            lane.rate.add(logged)
            lane.latencies.record((self._clock() - batch.received) * 1000, logged)
        self.pending_bytes -= length
        self.pending_events -= size
        if self._is_roomy():
            self._room.set()
        if not batch.outcome.done():
            batch.outcome.set_result(None)

    def _is_roomy(self) -> bool:
        return (
            self.pending_bytes * 2 < self._settings.max_pending_bytes
            and self.pending_events * 2 < self._settings.max_pending_events
        )


def _checked_key(lane: Lane, value: bytes) -> str | None:
    key = lane.check(value).key if len(value) <= LARGEST_EVENT else None
    length = len(value) + (len(key.encode()) if key else 0)
    if length > LARGEST_EVENT:
        raise InvalidEvent(
            f"the event has {length} bytes with its key, of at most {LARGEST_EVENT}",
            remedy="send a smaller one; keep what is large elsewhere, and its address in the event",
        )
    return key


@lru_cache(maxsize=2)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _headers(lane: Lane, now: int, source: str, traceparent: str) -> Headers:
    second, millisecond = divmod(now, 1000)
    headers = {
        **lane.headers,
        event.SOURCE: source or lane.default_source,
        event.TIME: f"{_second(second)}.{millisecond:03d}Z",
    }
    if traceparent:
        headers[event.TRACEPARENT] = traceparent
    return headers
