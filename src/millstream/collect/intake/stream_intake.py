"""The collector's state for one stream: its topics, checks and counts."""

from __future__ import annotations

import asyncio
import logging
import time

from millstream.collect.capacity.shedding import Shedder
from millstream.collect.formats.body import BodyFormat, Unpacker, format_of
from millstream.collect.formats.unpacked import BodyRefused, Limits, UnpackedBody
from millstream.collect.intake.watermark import Watermark
from millstream.collect.raw_message import RawMessage, is_small
from millstream.errors import InvalidEvent
from millstream.log.topic_names import rejected_topic, stream_topic
from millstream.pipeline.app import App, Stream
from millstream.runtime.measure import Clock, Latencies, Rate
from millstream.values import event
from millstream.values.report import StreamCounts

_log = logging.getLogger(__name__)
_QUICK_BYTES = 1 << 20  # of JSON or lines, which are only split, not converted


async def unpack_in_thread(stream: StreamIntake, message: RawMessage) -> UnpackedBody:
    """As `stream.unpack`; in a thread if that may take long: CSV and envelopes can take seconds."""
    if _is_quick(message):
        return stream.unpack(message)
    return await asyncio.to_thread(stream.unpack, message)


def _is_quick(message: RawMessage) -> bool:
    """Whether unpacking takes a few milliseconds at most: less than a change of threads."""
    if is_small(message):
        return True
    if message.encoding or len(message.body) > _QUICK_BYTES:
        return False
    try:
        return format_of(message.content_type) in (BodyFormat.SNIFF, BodyFormat.LINES)
    except BodyRefused:
        return True


class StreamIntake:
    """What the collector needs to know and count for one stream.

    accepted = logged + rejected + failed + shed + duplicates + pending + damaged, at every moment.
    """

    def __init__(
        self, app: App, stream: Stream, limits: Limits, clock: Clock = time.monotonic
    ) -> None:
        self.declaration = stream
        self.name = stream.name
        self.topic = stream_topic(app.name, stream.name)
        self.rejected_topic = rejected_topic(app.name, stream.name)
        self._unpack = Unpacker(stream.schema, limits).unpack
        self.check = stream.validator().check
        self.keeps_invalid = stream.on_invalid == "keep"
        self.remembers_ids = stream.remembers_ids
        self.shedder = Shedder(stream) if stream.shed else None
        self.headers = [(event.SPECVERSION, b"1.0"), (event.CONTENT_TYPE, b"application/json")]
        self.type = f"{app.name}.{stream.name}".encode()
        # For events without a CloudEvents source.
        self.default_source = f"/{app.name}/{stream.name}".encode()
        self.accepted = 0  # events received, including those shed
        self.pending = 0  # in the journal or on the way to Kafka
        self.logged = 0
        self.rejected = 0
        self.failed = 0  # in the failed store, because neither Kafka nor the journal can hold them
        self.shed = 0
        self.duplicates = 0
        self.damaged = 0  # lost with a journal entry that could not be read back
        self.recovered = 0  # of the accepted: those found in the journal of an earlier start
        self.refused = 0  # requests and messages of which nothing was accepted
        self.watermark: Watermark | None = None
        if stream.event_time is not None:
            self.watermark = Watermark(round(stream.ahead.total_seconds() * 1000), clock)
        self.rate = Rate(clock)
        self.journaled_ms = Latencies(clock)  # each from receipt on
        self.sent_ms = Latencies(clock)
        self.logged_ms = Latencies(clock)

    def unpack(self, message: RawMessage) -> UnpackedBody:
        """A message's events; BodyRefused if a sender's body cannot be read.

        An unreadable message of a source becomes one invalid event: nobody could be answered.
        """
        try:
            return self._unpack(
                message.body, message.content_type, message.encoding, message.attributes
            )
        except BodyRefused as refused:
            if not message.source:
                raise
            return UnpackedBody([message.body], None, {0: InvalidEvent(str(refused))})
        except Exception as error:
            return UnpackedBody([message.body], None, {0: internal_error("read", error)})

    def counts(self) -> StreamCounts:
        """The counts since the start, for the audit report."""
        counts = StreamCounts(
            accepted=self.accepted,
            logged=self.logged,
            rejected=self.rejected,
            failed=self.failed,
            shed=self.shed,
            duplicates=self.duplicates,
            pending=self.pending,
            damaged=self.damaged,
            recovered=self.recovered,
            rate=self.rate.per_second(),
            latency_ms=self.logged_ms.summary(),
            journaled_ms=self.journaled_ms.summary(),
            sent_ms=self.sent_ms.summary(),
        )
        if self.watermark is not None:
            counts.watermark = max(self.watermark.at, 0)
            counts.out_of_order = self.watermark.out_of_order
            counts.future = self.watermark.future
            counts.skew_ms = self.watermark.skews.summary()
        return counts


def internal_error(what: str, error: Exception) -> InvalidEvent:
    """The reason to reject an event that a bug of ours prevents from being read or checked.

    The event may be in the journal already. If the error were raised, it would stop the collector
    for all streams, and again at each start.
    """
    _log.error("cannot %s an event; it is rejected", what, exc_info=error)
    return InvalidEvent(
        f"Millstream failed to {what} it ({type(error).__name__})",
        remedy="report this with the collector's log, which has the cause",
    )
