"""An entry of the journal while it is in memory: its events, and what has become of each."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from millstream.collect.arrival import Arrival
from millstream.collect.dedup.ids import First
from millstream.collect.formats.unpacked import Unpacked
from millstream.collect.intake.lane import Lane, our_fault
from millstream.errors import InvalidEvent
from millstream.log.producing.batch_producer import Fields, Headers
from millstream.log.producing.producer import RecordMetadata
from millstream.schema.validate import ValidatedEvent
from millstream.values import event
from millstream.values.event import fingerprint

LARGEST_EVENT = 900_000  # Kafka's own limit is a million, for key, value and headers together
_SMALL = LARGEST_EVENT // 2  # with its key, which is a part of it, it is not too large either
SMALL_BATCH = 500  # events that are checked at once: some milliseconds of work
_EVENTS_PER_LOOK, _BYTES_PER_LOOK = 10, 64 << 10  # at the clock
_TURN_SECONDS = 0.005  # then others, and Kafka, have a turn
MOST_EXPLAINED = 1000  # rejected events of a body: the others have a short reason
_NONE: frozenset[int] = frozenset()
_NO_FIRSTS: Mapping[int, First] = MappingProxyType({})
_NO_PLACES: Mapping[int, int] = MappingProxyType({})
_OWN_ATTRIBUTES = frozenset({"specversion", "datacontenttype"})


class Record(NamedTuple):
    """One event as Kafka gets it."""

    topic: str
    value: bytes
    key: bytes | None
    timestamp: int
    headers: Headers


class Claim(NamedTuple):
    """A sender's id, and the events of an entry that it is for."""

    digest: bytes
    at: int
    events: int = 1


class Entry:
    """One arrival on its way to the log. Lists are by the events' place in it."""

    __slots__ = (
        "arrival",
        "at",
        "attributes",
        "base",
        "claimed",
        "claims",
        "collector",
        "counted",
        "deliveries",
        "done",
        "failures",
        "firsts",
        "future",
        "inside",
        "is_plain",
        "is_sampled",
        "kept",
        "keys",
        "lane",
        "note",
        "number",
        "open",
        "received",
        "rejections",
        "sequence",
        "size",
        "skip",
        "then",
        "times",
        "values",
        "waits_for_log",
        "watermarks",
    )

    def __init__(
        self, lane: Lane, arrival: Arrival, collector: str, sequence: int, received: float
    ) -> None:
        self.lane = lane
        self.arrival = arrival
        self.collector = collector
        self.sequence = sequence
        self.received = received  # by the monotonic clock; 0: before this start
        self.done: asyncio.Future[None] | None = None  # what its sender waits for
        self.then: Callable[[Entry, Exception | None], None] | None = None  # or is called with
        self.waits_for_log = False
        self.counted = False
        self.size = 0  # events
        self.values: list[bytes] = []  # empty again while it is only on disk
        self.attributes: list[dict[str, str]] | None = None
        self.keys: list[str | None] = []
        self.times: list[int | None] = []  # of the valid ones, if the stream has event time
        self.watermarks: Mapping[int, int] = _NO_PLACES  # before those that are out of order
        self.future: list[int] = []  # places of events that are dated too far ahead
        self.rejections: dict[int, InvalidEvent] = {}  # those go to the rejected topic
        self.kept: dict[int, InvalidEvent] = {}  # invalid too, but the stream keeps them
        self.is_sampled = arrival.sampled_rate < 1
        self.skip = _NONE  # events that need not be sent
        if arrival.duplicates or arrival.shed:
            self.skip = frozenset((*arrival.duplicates, *arrival.shed))
        self.at = 0  # the next one to hand to Kafka
        self.open = 0  # events that are not settled
        self.deliveries: list[RecordMetadata | None] = []
        self.failures: dict[int, str] = {}
        self.base: Headers = []  # what all of its records have in common
        self.number = b""  # in its events' ids
        self.is_plain = False  # no event has a header that the others lack
        self.claimed: asyncio.Future[None] | None = None  # before it is done, nothing may be sent
        self.claims: Sequence[Claim] = ()  # its events' ids, if they are remembered
        self.firsts: Mapping[int, First] = _NO_FIRSTS  # of what each duplicate is one
        self.inside: Mapping[int, int] = (
            _NO_PLACES  # duplicates of events of the same body, and of which
        )
        self.note = ""  # what else its sender is to be told

    @property
    def remaining(self) -> int:
        """How many events are neither duplicates nor shed."""
        return self.size - len(self.arrival.duplicates) - len(self.arrival.shed)

    @property
    def is_fine(self) -> bool:
        """Whether all of its events were taken in, as new ones."""
        return not (self.rejections or self.failures or self.firsts or self.arrival.shed)

    def fill(self, unpacked: Unpacked) -> None:
        """Take what was unpacked; `check` looks at each event."""
        self.values, self.attributes = unpacked.values, unpacked.attributes
        self.size = self.open = len(unpacked.values)
        self.deliveries = [None] * self.size
        self.keys, self.times, self.kept, self.future = [], [], {}, []
        self.rejections = unpacked.faults
        if self.skip:
            self.rejections = {i: f for i, f in unpacked.faults.items() if i not in self.skip}
        self.base = []

    def check(self, first: int, end: int) -> None:
        """Validate the events from one place to before another, but those that are left out."""
        lane, rejections, skip = self.lane, self.rejections, self.skip
        clock, future = lane.watermark, self.future
        latest = sys.maxsize if clock is None else clock.latest(self.arrival.received_at)
        for index in range(first, end):
            key = moment = None
            if index not in rejections and index not in skip:
                value = self.values[index]
                try:
                    if len(value) < _SMALL:
                        checked = lane.check(value, len(rejections) < MOST_EXPLAINED)
                    else:
                        checked = _check_large(lane, value)
                    key, moment = checked.key, checked.time
                    if moment is not None and moment > latest:
                        future.append(index)
                except InvalidEvent as invalid:
                    if lane.keeps_invalid and len(value) <= LARGEST_EVENT:
                        self.kept[index] = invalid.bare()
                    else:
                        rejections[index] = invalid.bare()
                except Exception as error:
                    rejections[index] = our_fault("check", error)
            self.keys.append(key)
            self.times.append(moment)

    async def check_in_turns(self) -> None:
        """As `check`, of all events, without keeping the loop for long."""
        began = time.monotonic()
        first = 0
        while first < self.size:
            end = self._end_of_look(first)
            self.check(first, end)
            first = end
            if time.monotonic() - began > _TURN_SECONDS:
                await asyncio.sleep(0)
                began = time.monotonic()

    def _end_of_look(self, first: int) -> int:
        end, size = first + 1, len(self.values[first])
        last = min(first + _EVENTS_PER_LOOK, self.size)
        while end < last and size < _BYTES_PER_LOOK:
            size += len(self.values[end])
            end += 1
        return end

    def accept(self) -> None:
        """It is taken in, or known to repeat what is: its events count from now on."""
        lane, arrival = self.lane, self.arrival
        self.counted = True
        lane.accepted += self.size
        if arrival.duplicates or arrival.shed:
            lane.duplicates += len(arrival.duplicates)
            lane.shed += len(arrival.shed)
        lane.pending += self.remaining

    def pass_on(self) -> None:
        """Its turn has come: find what of it is out of order, once. Nothing before it comes later.

        What its records have in common is known now, too.
        """
        if self.base:
            return
        if self.lane.watermark is not None:
            self.watermarks = self.lane.watermark.pass_on(
                self.times, self.arrival.received_at, self.skip
            )
        self.base = self._base_headers()
        self.number = b"%b-%d" % (self.collector.encode(), self.sequence)
        self.is_plain = not (
            self.rejections
            or self.kept
            or self.watermarks
            or self.is_sampled
            or self.attributes is not None
        )

    def release(self) -> None:
        """Keep what its sender is told; the events themselves are in the journal."""
        self.values, self.keys, self.times, self.attributes, self.base = [], [], [], None, []

    def resolve(self, error: Exception | None = None) -> None:
        """Let its sender go on."""
        if self.then is not None:
            then, self.then = self.then, None
            then(self, error)
        elif self.done is not None and not self.done.done():
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)

    def record(self, index: int) -> Record:
        """The event at a place, as Kafka gets it; only after `pass_on`."""
        return Record(*self.fields(index))

    def fields(self, index: int) -> Fields:
        """As `record`, without its names: where each event counts."""
        value, headers, key = self.values[index], self.base.copy(), self.keys[index]
        if index:
            headers.append((event.INDEX, b"%d" % index))
        topic = self.lane.topic
        if self.is_plain:
            headers.append((event.FINGERPRINT, fingerprint(value).encode()))
            headers.append((event.ID, self._id(index)))
        else:
            topic, value = self._mark(index, value, headers)
        key_bytes = None if key is None else key.encode()
        return topic, value, key_bytes, self.arrival.received_at, headers

    def _id(self, index: int) -> bytes:
        return b"%b.%d" % (self.number, index) if index else self.number

    def _mark(self, index: int, value: bytes, headers: Headers) -> tuple[str, bytes]:
        """Add all that can be said of one event and not of others; its topic and value."""
        if self.is_sampled and index not in self.arrival.spared:
            headers.append((event.SAMPLED, b"%.4g" % self.arrival.sampled_rate))
        if index in self.watermarks:
            headers.append((event.WATERMARK, b"%d" % self.watermarks[index]))
        topic = self.lane.topic
        if index in self.rejections:
            topic, invalid = self.lane.rejected_topic, self.rejections[index]
            headers.append((event.REASON, _encoded(str(invalid))))
            headers.append((event.FIELD, _encoded(invalid.field)))
        elif index in self.kept:
            headers.append((event.INVALID, _encoded(str(self.kept[index]))))
        headers.append((event.FINGERPRINT, fingerprint(value).encode()))
        if self.attributes is None:
            headers.append((event.ID, self._id(index)))
        else:
            self._add_attributes(headers, self.attributes[index], self._id(index))
        return topic, value

    def _base_headers(self) -> Headers:
        arrival, lane = self.arrival, self.lane
        headers: Headers = [
            *lane.headers,
            (event.COLLECTOR, self.collector.encode()),
            (event.SEQUENCE, b"%d" % self.sequence),
        ]
        if arrival.traceparent:
            headers.append((event.TRACEPARENT, arrival.traceparent.encode()))
        if arrival.correlation:
            headers.append((event.CORRELATION, arrival.correlation.encode()))
        if self.attributes is None:
            source = arrival.source.encode() if arrival.source else lane.default_source
            headers.append((event.SOURCE, source))
            headers.append((event.TYPE, lane.type))
            headers.append((event.TIME, _moment(arrival.received_at)))
        return headers

    def _add_attributes(self, headers: Headers, given: dict[str, str], number: bytes) -> None:
        source = self.arrival.source.encode() if self.arrival.source else self.lane.default_source
        attributes = {
            "id": number,
            "source": source,
            "type": self.lane.type,
            "time": _moment(self.arrival.received_at),
            **{name: text.encode() for name, text in given.items()},
        }
        taken = {name for name, _ in headers}
        for name, value in attributes.items():
            if name not in _OWN_ATTRIBUTES and f"ce_{name}" not in taken:
                headers.append((f"ce_{name}", value))


def _check_large(lane: Lane, value: bytes) -> ValidatedEvent:
    """As `lane.check`; InvalidEvent as well if Kafka could not take it with its key."""
    length, checked = len(value), None
    if length <= LARGEST_EVENT:
        checked = lane.check(value)
        length += len(checked.key.encode()) if checked.key else 0
    if checked is None or length > LARGEST_EVENT:
        raise InvalidEvent(
            f"the event has {length} bytes with its key, of at most {LARGEST_EVENT}",
            remedy="send a smaller one; keep what is large elsewhere, and its address in the event",
        )
    return checked


def _encoded(words: str) -> bytes:
    """Words about an event; half of a surrogate pair that they quote is escaped."""
    return words.encode(errors="backslashreplace")


@lru_cache(maxsize=64)
def _second(second: int) -> bytes:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()


@lru_cache(maxsize=64)
def _moment(milliseconds: int) -> bytes:
    second, millisecond = divmod(milliseconds, 1000)
    return b"%b.%03dZ" % (_second(second), millisecond)
