"""A journal entry in memory: its events, and the outcome of each."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from millstream.collect.dedup.ids import Original
from millstream.collect.formats.unpacked import UnpackedBody
from millstream.collect.intake.stream_intake import StreamIntake, internal_error
from millstream.collect.raw_message import RawMessage
from millstream.errors import InvalidEvent
from millstream.log.producing.batch_producer import Fields, Headers
from millstream.log.producing.producer import RecordMetadata
from millstream.schema.validate import ValidatedEvent
from millstream.values import event
from millstream.values.event import fingerprint

LARGEST_EVENT = 900_000  # Kafka's own limit is a million, for key, value and headers together
_SMALL = LARGEST_EVENT // 2  # a smaller event cannot be too large, even with its key
SMALL_BATCH = 500  # events that are checked without yielding to the loop: some milliseconds
_SLICE_EVENTS, _SLICE_BYTES = 10, 64 << 10  # checked between two looks at the clock
_TURN_SECONDS = 0.005  # then other tasks run
MOST_EXPLAINED = 1000  # rejected events of a body with a full reason; the others get a short one
_NONE: frozenset[int] = frozenset()
_NO_ORIGINALS: Mapping[int, Original] = MappingProxyType({})
_NO_INDEXES: Mapping[int, int] = MappingProxyType({})
_OWN_ATTRIBUTES = frozenset({"specversion", "datacontenttype"})


class IdClaim(NamedTuple):
    """A sender's id, and the events of an entry that it covers."""

    digest: bytes
    first_index: int
    events: int = 1


class Entry:
    """One message on its way to the log. Lists are indexed by the event's place in the message."""

    __slots__ = (
        "attributes",
        "collector",
        "common_headers",
        "deliveries",
        "done",
        "failures",
        "future",
        "id_claims",
        "id_prefix",
        "ids_written",
        "inner_duplicates",
        "is_counted",
        "is_plain",
        "is_sampled",
        "kept_invalid",
        "keys",
        "message",
        "next_index",
        "note",
        "on_done",
        "originals",
        "received",
        "rejections",
        "sequence",
        "size",
        "skip",
        "stream",
        "times",
        "unsettled",
        "values",
        "waits_for_log",
        "watermarks",
    )

    def __init__(
        self,
        stream: StreamIntake,
        message: RawMessage,
        collector: str,
        sequence: int,
        received: float,
    ) -> None:
        self.stream = stream
        self.message = message
        self.collector = collector
        self.sequence = sequence
        self.received = received  # monotonic clock; 0: before this start
        self.done: asyncio.Future[None] | None = None  # the sender waits for it
        self.on_done: Callable[[Entry, Exception | None], None] | None = None  # or this is called
        self.waits_for_log = False
        self.is_counted = False
        self.size = 0  # events
        self.values: list[bytes] = []  # empty while the entry is only on disk
        self.attributes: list[dict[str, str]] | None = None
        self.keys: list[str | None] = []
        self.times: list[int | None] = []  # of valid events, if the stream has event time
        self.watermarks: Mapping[int, int] = _NO_INDEXES  # before out-of-order events
        self.future: list[int] = []  # indexes of events that are dated too far ahead
        self.rejections: dict[int, InvalidEvent] = {}  # sent to the rejected topic
        self.kept_invalid: dict[int, InvalidEvent] = {}  # invalid, but the stream keeps such events
        self.is_sampled = message.sampled_rate < 1
        self.skip = _NONE  # indexes of events that are not sent
        if message.duplicates or message.shed:
            self.skip = frozenset((*message.duplicates, *message.shed))
        self.next_index = 0  # the next event to give to the producer
        self.unsettled = 0  # events without an outcome
        self.deliveries: list[RecordMetadata | None] = []
        self.failures: dict[int, str] = {}
        self.common_headers: Headers = []  # the Kafka headers that all of its records share
        self.id_prefix = b""  # of the events' ids
        self.is_plain = False  # every record has only the common headers, a fingerprint and an id
        self.ids_written: asyncio.Future[None] | None = None  # nothing is sent before it is done
        self.id_claims: Sequence[IdClaim] = ()  # senders' ids, if remembered
        self.originals: Mapping[int, Original] = _NO_ORIGINALS  # by index of the duplicate
        # Duplicates of events of the same body, by index: the index of the original.
        self.inner_duplicates: Mapping[int, int] = _NO_INDEXES
        self.note = ""  # an additional text for the answer

    @property
    def remaining(self) -> int:
        """The number of events that are neither duplicates nor shed."""
        return self.size - len(self.message.duplicates) - len(self.message.shed)

    @property
    def is_all_new(self) -> bool:
        """Whether all of its events were accepted, and none is a duplicate."""
        return not (self.rejections or self.failures or self.originals or self.message.shed)

    def set_events(self, unpacked: UnpackedBody) -> None:
        """Set the events; `check` validates them."""
        self.values, self.attributes = unpacked.values, unpacked.attributes
        self.size = self.unsettled = len(unpacked.values)
        self.deliveries = [None] * self.size
        self.keys, self.times, self.kept_invalid, self.future = [], [], {}, []
        self.rejections = unpacked.faults
        if self.skip:
            self.rejections = {i: f for i, f in unpacked.faults.items() if i not in self.skip}
        self.common_headers = []

    def check(self, first: int, end: int) -> None:
        """Validate the events from index `first` to before `end`, except skipped ones."""
        stream, rejections, skip = self.stream, self.rejections, self.skip
        clock, future = stream.watermark, self.future
        latest = sys.maxsize if clock is None else clock.latest(self.message.received_at)
        for index in range(first, end):
            key = moment = None
            if index not in rejections and index not in skip:
                value = self.values[index]
                try:
                    if len(value) < _SMALL:
                        checked = stream.check(value, len(rejections) < MOST_EXPLAINED)
                    else:
                        checked = _check_large(stream, value)
                    key, moment = checked.key, checked.time
                    if moment is not None and moment > latest:
                        future.append(index)
                except InvalidEvent as invalid:
                    if stream.keeps_invalid and len(value) <= LARGEST_EVENT:
                        self.kept_invalid[index] = invalid.without_traceback()
                    else:
                        rejections[index] = invalid.without_traceback()
                except Exception as error:
                    rejections[index] = internal_error("check", error)
            self.keys.append(key)
            self.times.append(moment)

    async def check_in_slices(self) -> None:
        """As `check`, of all events, without blocking the loop for long."""
        began = time.monotonic()
        first = 0
        while first < self.size:
            end = self._end_of_slice(first)
            self.check(first, end)
            first = end
            if time.monotonic() - began > _TURN_SECONDS:
                await asyncio.sleep(0)
                began = time.monotonic()

    def _end_of_slice(self, first: int) -> int:
        end, size = first + 1, len(self.values[first])
        last = min(first + _SLICE_EVENTS, self.size)
        while end < last and size < _SLICE_BYTES:
            size += len(self.values[end])
            end += 1
        return end

    def count_accepted(self) -> None:
        """Count its events as accepted: they are stored, or duplicates of stored events."""
        stream, message = self.stream, self.message
        self.is_counted = True
        stream.accepted += self.size
        if message.duplicates or message.shed:
            stream.duplicates += len(message.duplicates)
            stream.shed += len(message.shed)
        stream.pending += self.remaining

    def prepare_records(self) -> None:
        """Advance the watermark and build the common headers; only the first call does anything.

        Must be called in the order of entries: the watermark depends on it.
        """
        if self.common_headers:
            return
        if self.stream.watermark is not None:
            self.watermarks = self.stream.watermark.advance(
                self.times, self.message.received_at, self.skip
            )
        self.common_headers = self._base_headers()
        self.id_prefix = b"%b-%d" % (self.collector.encode(), self.sequence)
        self.is_plain = not (
            self.rejections
            or self.kept_invalid
            or self.watermarks
            or self.is_sampled
            or self.attributes is not None
        )

    def drop_events(self) -> None:
        """Free the events' memory; what the answer needs stays."""
        self.values, self.keys, self.times, self.common_headers = [], [], [], []
        self.attributes = None

    def resolve(self, error: Exception | None = None) -> None:
        """Complete the sender's wait, at most once."""
        if self.on_done is not None:
            then, self.on_done = self.on_done, None
            then(self, error)
        elif self.done is not None and not self.done.done():
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)

    def fields(self, index: int) -> Fields:
        """The event at an index as it is sent to Kafka; call `prepare_records` before."""
        value, headers, key = self.values[index], self.common_headers.copy(), self.keys[index]
        if index:
            headers.append((event.INDEX, b"%d" % index))
        topic = self.stream.topic
        if self.is_plain:
            headers.append((event.FINGERPRINT, fingerprint(value).encode()))
            headers.append((event.ID, self._id(index)))
        else:
            topic = self._add_own_headers(index, value, headers)
        key_bytes = None if key is None else key.encode()
        return topic, value, key_bytes, self.message.received_at, headers

    def _id(self, index: int) -> bytes:
        return b"%b.%d" % (self.id_prefix, index) if index else self.id_prefix

    def _add_own_headers(self, index: int, value: bytes, headers: Headers) -> str:
        """Add the headers that only some events have; the topic of the event."""
        if self.is_sampled and index not in self.message.spared:
            headers.append((event.SAMPLED, b"%.4g" % self.message.sampled_rate))
        if index in self.watermarks:
            headers.append((event.WATERMARK, b"%d" % self.watermarks[index]))
        topic = self.stream.topic
        if index in self.rejections:
            topic, invalid = self.stream.rejected_topic, self.rejections[index]
            headers.append((event.REASON, _encoded(str(invalid))))
            headers.append((event.FIELD, _encoded(invalid.field)))
        elif index in self.kept_invalid:
            headers.append((event.INVALID, _encoded(str(self.kept_invalid[index]))))
        headers.append((event.FINGERPRINT, fingerprint(value).encode()))
        if self.attributes is None:
            headers.append((event.ID, self._id(index)))
        else:
            self._add_attributes(headers, self.attributes[index], self._id(index))
        return topic

    def _base_headers(self) -> Headers:
        message, stream = self.message, self.stream
        headers: Headers = [
            *stream.headers,
            (event.COLLECTOR, self.collector.encode()),
            (event.SEQUENCE, b"%d" % self.sequence),
        ]
        if message.traceparent:
            headers.append((event.TRACEPARENT, message.traceparent.encode()))
        if message.correlation:
            headers.append((event.CORRELATION, message.correlation.encode()))
        if self.attributes is None:
            source = message.source.encode() if message.source else stream.default_source
            headers.append((event.SOURCE, source))
            headers.append((event.TYPE, stream.type))
            headers.append((event.TIME, _moment(message.received_at)))
        return headers

    def _add_attributes(self, headers: Headers, given: dict[str, str], number: bytes) -> None:
        source = self.message.source.encode() if self.message.source else self.stream.default_source
        attributes = {
            "id": number,
            "source": source,
            "type": self.stream.type,
            "time": _moment(self.message.received_at),
            **{name: text.encode() for name, text in given.items()},
        }
        taken = {name for name, _ in headers}
        for name, value in attributes.items():
            if name not in _OWN_ATTRIBUTES and f"ce_{name}" not in taken:
                headers.append((f"ce_{name}", value))


def _check_large(stream: StreamIntake, value: bytes) -> ValidatedEvent:
    """As `stream.check`; also InvalidEvent if the event and its key are too large for Kafka."""
    length, checked = len(value), None
    if length <= LARGEST_EVENT:
        checked = stream.check(value)
        length += len(checked.key.encode()) if checked.key else 0
    if checked is None or length > LARGEST_EVENT:
        raise InvalidEvent(
            f"the event has {length} bytes with its key, of at most {LARGEST_EVENT}",
            remedy="send a smaller event: store large data elsewhere, and its address in the event",
        )
    return checked


def _encoded(text: str) -> bytes:
    """A text about an event as bytes; a lone surrogate that it quotes is escaped."""
    return text.encode(errors="backslashreplace")


@lru_cache(maxsize=64)
def _second(second: int) -> bytes:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()


@lru_cache(maxsize=64)
def _moment(milliseconds: int) -> bytes:
    second, millisecond = divmod(milliseconds, 1000)
    return b"%b.%03dZ" % (_second(second), millisecond)
