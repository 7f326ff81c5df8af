"""One stream's way in: where its events go, how they are checked, what was counted."""

from __future__ import annotations

import asyncio
import logging
import time

from millstream.collect.arrival import Arrival, is_small
from millstream.collect.capacity.shedding import Shedder
from millstream.collect.formats.body import Form, Unpacker, form_of
from millstream.collect.formats.unpacked import BodyRefused, Limits, Unpacked
from millstream.collect.intake.watermark import Watermark
from millstream.errors import InvalidEvent
from millstream.log.topic_names import rejected_topic, stream_topic
from millstream.pipeline.app import App, Stream
from millstream.runtime.measure import Clock, Latencies, Rate
from millstream.values import event
from millstream.values.report import StreamCounts

_log = logging.getLogger(__name__)
_QUICK_BYTES = 1 << 20  # of JSON or lines, which are only split


async def unpack_aside(lane: Lane, arrival: Arrival) -> Unpacked:
    """As `lane.unpack`; in a thread if it may take long: rows and envelopes can take seconds."""
    if _is_quick(arrival):
        return lane.unpack(arrival)
    return await asyncio.to_thread(lane.unpack, arrival)


def _is_quick(arrival: Arrival) -> bool:
    """Whether to unpack it takes some milliseconds at most: less than the way through a thread."""
    if is_small(arrival):
        return True
    if arrival.encoding or len(arrival.body) > _QUICK_BYTES:
        return False
    try:
        return form_of(arrival.content_type) in (Form.SNIFF, Form.LINES)
    except BodyRefused:
        return True


class Lane:
    """What the collector holds per stream.

    accepted = logged + rejected + failed + shed + duplicates + pending + damaged, at every moment.
    """

    def __init__(
        self, app: App, stream: Stream, limits: Limits, clock: Clock = time.monotonic
    ) -> None:
        self.stream = stream
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
        # Of senders that don't name themselves.
        self.default_source = f"/{app.name}/{stream.name}".encode()
        self.accepted = 0  # events that were looked at: what was taken in, and what was shed
        self.pending = 0  # in the journal or on their way to Kafka
        self.logged = 0
        self.rejected = 0
        self.failed = 0  # neither Kafka nor the journal can take them: they are in the failed store
        self.shed = 0
        self.duplicates = 0
        self.damaged = 0  # lost with an entry of the journal that could not be read back
        self.recovered = 0  # of the accepted, those that an earlier start had left in the journal
        self.refused = 0  # requests and messages that could not be taken in: nothing of them is
        self.watermark: Watermark | None = None
        if stream.event_time is not None:
            self.watermark = Watermark(round(stream.ahead.total_seconds() * 1000), clock)
        self.rate = Rate(clock)
        self.journaled_ms = Latencies(clock)  # each from the moment of its arrival
        self.sent_ms = Latencies(clock)
        self.logged_ms = Latencies(clock)

    def unpack(self, arrival: Arrival) -> Unpacked:
        """An arrival's events; BodyRefused if there is somebody to tell that it cannot be read."""
        try:
            return self._unpack(
                arrival.body, arrival.content_type, arrival.encoding, arrival.attributes
            )
        except BodyRefused as refused:
            if not arrival.source:
                raise
            # Nobody to tell: it is kept where the invalid ones are.
            return Unpacked([arrival.body], None, {0: InvalidEvent(str(refused))})
        except Exception as error:
            return Unpacked([arrival.body], None, {0: our_fault("read", error)})

    def counts(self) -> StreamCounts:
        """The counts since the start, for the audit."""
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


def our_fault(what: str, error: Exception) -> InvalidEvent:
    """The reason to reject an event that a fault of ours does not let us read or check.

    It may be in the journal by then. Raised, the fault would stop the collector for all streams,
    and again at each start.
    """
    _log.error("cannot %s an event; it is rejected", what, exc_info=error)
    return InvalidEvent(
        f"Millstream failed to {what} it ({type(error).__name__})",
        remedy="report this with the collector's log, which has the cause",
    )
