"""One stream's way in: where its events go, how they are checked, what was counted."""

from __future__ import annotations

import time

from millstream import event
from millstream.app import App, Stream
from millstream.audit import StreamCounts
from millstream.log.topics import rejected_topic, stream_topic
from millstream.measure import Clock, Latencies, Rate
from millstream.validate import Validator

Headers = dict[str, str | bytes]


class Lane:
    """What the collector holds per stream. accepted = logged + pending, at every moment."""

    def __init__(
        self, app: App, stream: Stream, collector: str, clock: Clock = time.monotonic
    ) -> None:
        self.stream = stream
        self.name = stream.name
        self.topic = stream_topic(app.name, stream.name)
        self.rejected_topic = rejected_topic(app.name, stream.name)
        self.check = Validator(stream).check
        self.headers: Headers = {
            event.SPECVERSION: "1.0",
            event.TYPE: f"{app.name}.{stream.name}",
            event.CONTENT_TYPE: "application/json",
            event.COLLECTOR: collector,
        }
        self.default_source = f"/{app.name}/{stream.name}"  # until senders name themselves
        self.logged = 0
        self.pending = 0
        self.rejected = 0
        self.unconfirmed = 0  # handed to Kafka, but it did not confirm: their senders got a 503
        self.refused = 0  # not looked at, as too much was pending: their senders got a 503
        self.rate = Rate(clock)
        self.latencies = Latencies(clock)

    def counts(self) -> StreamCounts:
        """The counts since the start, for the audit."""
        return StreamCounts(
            accepted=self.logged + self.pending,
            logged=self.logged,
            rejected=self.rejected,
            pending=self.pending,
            rate=self.rate.per_second(),
            latency_ms=self.latencies.summary(),
        )
