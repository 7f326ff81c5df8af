"""One stream's clock, the counts of its events, and which of them are late."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import Message

from millstream.analyze.plan import ViewPlan
from millstream.analyze.watermarks.event_time import time_reader
from millstream.analyze.watermarks.lateness import lateness_rules
from millstream.analyze.watermarks.stream_clock import PartitionClock, StreamClock
from millstream.analyze.windows.window_spec import Window
from millstream.log.topic_names import late_topic, stream_topic
from millstream.pipeline.app import App
from millstream.pipeline.model import Stream
from millstream.syntax.duration import milliseconds
from millstream.values.clock import to_iso
from millstream.values.event import LATE_BY, LATE_REASON, LATE_VIEWS, WATERMARK
from millstream.values.report import StreamCounts


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """A stream's watermark, and the log as it was then."""

    watermark: int
    received: int  # the same by stream time
    newest: int  # when the newest event was received; milliseconds
    positions: dict[str, int]  # partition → the next offset
    topic: str


@dataclass(frozen=True, slots=True)
class LateEvent:
    """Why an event is missing in some or all views: it is late, in the future or broken."""

    reason: str
    by_ms: int
    views: Mapping[str, list[Window]]

    def headers(self) -> list[tuple[str, bytes]]:
        views = {
            view: [[_moment(start), _moment(end)] for start, end in windows]
            for view, windows in self.views.items()
        }
        return [
            (LATE_REASON, self.reason.encode()),
            (LATE_BY, str(self.by_ms).encode()),
            (LATE_VIEWS, json.dumps(views, separators=(",", ":")).encode()),
        ]


class TrackedStream:
    """Reads the events of one stream in order. Not thread-safe; never blocks."""

    def __init__(self, app: App, stream: Stream, views: Iterable[ViewPlan], idle: float) -> None:
        views = list(views)
        self.name = stream.name
        self.topic = stream_topic(app.name, stream.name)
        self.late_topic = late_topic(app.name, stream.name)
        self.clock = StreamClock(idle)
        self.counts = StreamCounts()  # as of the last commit
        self._read = time_reader(stream.event_time) if stream.event_time is not None else None
        self._rules = lateness_rules(views, stream.name)
        self._ahead = milliseconds(stream.ahead)
        self._spec_of = {
            view.name: next((rule.spec for rule in self._rules if rule.view == view.name), None)
            for view in views
            if stream.name in streams_of(app, view.name)
        }

    def progress(self) -> StreamProgress:
        partitions = self.clock.partitions
        return StreamProgress(
            self.clock.watermark,
            self.clock.received,
            max((each.newest for each in partitions.values()), default=0),
            {str(number): each.position for number, each in partitions.items()},
            self.topic,
        )

    def update_counts(self) -> None:
        """Publish the counts: what was counted so far is committed."""
        total, partitions = self.clock.total, self.clock.partitions
        self.counts = StreamCounts(
            in_order=total("in_order"),
            late=total("late"),
            future=total("future"),
            broken=total("broken"),
            lost=total("lost"),
            read={str(number): each.position for number, each in partitions.items()},
            read_from={str(number): each.began for number, each in partitions.items()},
        )

    def apply(
        self, message: Message, clock: PartitionClock, now: float, wall: int
    ) -> LateEvent | None:
        """Advance the clock and count the event; what to write if a view leaves it out."""
        received = message.timestamp()[1]
        offset = message.offset() or 0
        known = min(received, wall)  # a collector's clock may be ahead, too
        if self._read is None:
            clock.advance(offset, known, known, now)
            clock.in_order += 1
            return None
        at = self._read(message.value())
        late = self._late(at, received, message)
        if late is None:
            clock.advance(offset, at, known, now)
            clock.in_order += 1
            return None
        # An event from the future advances no clock, here or in the collector: among old events
        # that are sent now, it would end every window at once.
        clock.advance(offset, None if late.reason == "future" else at, known, now)
        match late.reason:
            case "late":
                clock.late += 1
            case "future":
                clock.future += 1
            case "broken":
                clock.broken += 1
        return late

    def _late(self, at: int | None, received: int, message: Message) -> LateEvent | None:
        if at is None:
            return LateEvent("broken", 0, {rule.view: [] for rule in self._rules})
        if at > received + self._ahead:
            views = {
                name: spec.assign(at) if spec is not None else []
                for name, spec in self._spec_of.items()
            }
            return LateEvent("future", at - received, views)
        if not self._rules or (watermark := _watermark(message)) is None:
            return None
        late: dict[str, list[Window]] = {}
        for rule in self._rules:
            if (closed := rule.closed_windows(at, watermark)) is not None:
                late.setdefault(rule.view, []).extend(closed)
        return LateEvent("late", watermark - at, late) if late else None


def streams_of(app: App, view: str) -> Iterator[str]:
    """The streams that a view reads, through other views too."""
    for name in app.views[view].inputs if view in app.views else ():
        if name in app.streams:
            yield name
        else:
            yield from streams_of(app, name)


def _watermark(message: Message) -> int | None:
    headers: list[tuple[str, bytes]] = message.headers() or []  # type: ignore[assignment]
    for name, value in headers:
        if name == WATERMARK:
            try:
                return int(value)
            except ValueError:
                return None
    return None


def _moment(milliseconds: int) -> str:
    try:
        return to_iso(milliseconds)
    except (OverflowError, ValueError, OSError):  # beyond the year 9999
        return str(milliseconds)
