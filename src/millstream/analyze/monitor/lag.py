"""How far each view is behind its inputs, whether that grows, and when it will have caught up."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
from confluent_kafka import Consumer, KafkaException, TopicPartition

from millstream.analyze.plan import ViewPlan
from millstream.log.connection import consumer_config
from millstream.log.consumer import END, Reader
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.log.topic_names import audit_topic
from millstream.values.clock import now_ms
from millstream.values.report import ProcessReport, Trend, ViewCounts

_log = logging.getLogger(__name__)
_EVERY = 2.0
_SECONDS = 5.0
_TREND_SECONDS = 30.0
_STEADY = 0.1  # a relative change by less than this is none
_GRACE = 30.0  # seconds by which a commit may be late
_BEFORE_COMMIT_MS = 2_000  # events received so shortly before a commit may not be in it
_RECENT = 10.0  # seconds for which a new row shows that the query is processing events
_REMEMBERED = 1800  # measurements: an hour

Bounds = Mapping[int, tuple[int, int]]  # partition → first offset, end


class ViewLag(NamedTuple):
    """Events between a view's position and the ends of its inputs, at most."""

    behind: int
    seconds: float
    trend: Trend  # empty: unknown, because the query may have read the events
    catch_up: float | None  # seconds until it is 0 at this rate; None if it does not shrink
    read: int = 0  # the view's position: the sum of its inputs' offsets
    end: int = 0  # the sum of its inputs' ends
    overdue: int = 0  # events that wait for longer than a view that may shed allows
    at: float = 0.0  # when it was measured, by the monotonic clock


class LagTrend:
    """The trend of one view's lag."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, now: float, behind: int) -> tuple[Trend, float | None]:
        """The trend with this measurement, and the seconds until the lag is 0 if it shrinks."""
        self._seen.append((now, behind))
        while now - self._seen[0][0] > _TREND_SECONDS:
            self._seen.popleft()
        since, before = self._seen[0]
        change = behind - before
        if now == since or abs(change) <= _STEADY * max(before, behind):
            return "steady", None
        if change > 0:
            return "growing", None
        return "shrinking", round(behind * (now - since) / -change, 1)


class Arrivals:
    """The ends of one view's inputs over time."""

    def __init__(self, reads: tuple[str, ...]) -> None:
        self.reads = reads
        self._seen: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)

    def current_until(self, now: int, end: int, read: int, read_at: int) -> int:
        """The time before which every event that arrived is read; milliseconds since the epoch.

        `read_at` alone does not say how old the events read then were.
        """
        self._seen.append((now, end))
        while len(self._seen) > 1 and self._seen[1][1] <= read:
            self._seen.popleft()
        at, was = self._seen[0]
        return at if was <= read else min(at, read_at)


class LastChange:
    """When a number last changed."""

    def __init__(self) -> None:
        self._value, self._at = -1, 0.0

    def seconds(self, value: int, now: float) -> float:
        """How long it has had this value."""
        if value != self._value:
            self._at = float("-inf") if self._value < 0 else now
            self._value = value
        return now - self._at


class LagMonitor(threading.Thread):
    """Measures every view's lag every few seconds, in a thread, because Kafka may not answer.

    A view's position is that of its checkpoint. For a real-time query that is up to a checkpoint
    interval old. So the newest rows at the servers count, too: the events that they come from, and
    when the newest of those was received. In micro-batches the time of receipt does not count: many
    events have the same one, and a batch may end among them.

    Events that a real-time view filters out are in no row. Until the next commit nobody knows
    whether they were read. Then their number is reported as the most that the view can be behind,
    without a trend.
    """

    def __init__(
        self, app: str, log: LogSettings, plans: Iterable[ViewPlan], commits_every: float = 300.0
    ) -> None:
        """`commits_every`: seconds between two commits of a real-time query."""
        super().__init__(name="lag", daemon=True)
        self._commits_every = commits_every
        self._log = log
        self._streams = f"{app}.stream."
        self._plans = {plan.name: plan for plan in plans}
        self._trends = {name: LagTrend() for name in self._plans}
        self._arrivals = {name: Arrivals(plan.reads) for name, plan in self._plans.items()}
        self._new_rows = {name: LastChange() for name in self._plans}
        self._first_seen: dict[str, int] = {}
        self._counts: Mapping[str, ViewCounts] = {}
        self._served: dict[str, ViewCounts] = {}
        self._lags: dict[str, ViewLag] = {}
        self._closing = threading.Event()
        self._reports = Reader(log, {(audit_topic(app), 0): END}, self._read_reports)
        self.start()

    def follow(self, plans: Iterable[ViewPlan]) -> None:
        """Continue with these plans: a rebuilt view has another topic."""
        self._plans = {plan.name: plan for plan in plans}

    def of(self, view: str) -> ViewLag | None:
        """The view's lag as it was last measured."""
        return self._lags.get(view)

    def add_to(self, counts: dict[str, ViewCounts]) -> dict[str, ViewCounts]:
        """Add the lag as it was last measured to the counts."""
        self._counts = counts
        for name, lag in self._lags.items():
            if (view := counts.get(name)) is not None:
                view.behind, view.behind_s = lag.behind, lag.seconds
                view.trend, view.catch_up_s = lag.trend, lag.catch_up
        return counts

    def close(self) -> None:
        self._closing.set()
        self._reports.close()

    def run(self) -> None:
        consumer = Consumer(consumer_config(self._log))
        while not self._closing.wait(_EVERY):
            try:
                self._measure_all(consumer)
            except KafkaException as error:
                _log.debug("cannot measure how far views are behind: %s", error.args[0].str())
        consumer.close()

    def _read_reports(self, records: list[Record]) -> None:
        for record in records:
            try:
                report = msgspec.json.decode(record.value or b"", type=ProcessReport)
            except msgspec.MsgspecError:
                continue  # of another version of Millstream
            if report.tier == "serve":
                self._served.update(report.views)

    def _measure_all(self, consumer: Consumer) -> None:
        topics = {topic for plan in self._plans.values() for topic in plan.reads}
        held = {topic: _bounds(consumer, topic) for topic in topics}
        for name, plan in self._plans.items():
            if (counts := self._counts.get(name)) is not None:
                self._lags[name] = self._measure(consumer, plan, counts, held)

    def _measure(
        self, consumer: Consumer, plan: ViewPlan, counts: ViewCounts, held: Mapping[str, Bounds]
    ) -> ViewLag:
        name, served = plan.name, self._served.get(plan.name, ViewCounts())
        behind = overdue = read = 0
        for topic in plan.reads:
            allowed = plan.sheds_after_ms
            overdue_since = 0 if allowed is None else now_ms() - allowed
            due = self._offsets_after(consumer, topic, held[topic], overdue_since)
            known = [counts.read]
            if plan.mode == "real_time":
                newest = served.newest_received_at
                by_time = self._offsets_after(consumer, topic, held[topic], newest)
                known += [served.read, {topic: by_time}]
            for partition, (first, end) in held[topic].items():
                at = max(each.get(topic, {}).get(str(partition), first) for each in known)
                behind += max(0, end - at)
                overdue += max(0, due.get(str(partition), 0) - at)
                read += min(at, end)
        if plan.reads != self._arrivals[name].reads:
            self._arrivals[name] = Arrivals(plan.reads)
        wall, now = now_ms(), time.monotonic()
        until = self._arrivals[name].current_until(wall, read + behind, read, counts.read_at)
        newest = max(served.newest_received_at, until)
        seconds = (wall - newest) / 1000 if behind and newest else 0.0
        trend, catch_up = self._trends[name].add(now, behind)
        is_idle = self._new_rows[name].seconds(served.newest_received_at, now) > _RECENT
        if is_idle and self._may_have_read(consumer, plan, counts, held, wall):
            trend, catch_up = "", None
        seconds = round(max(0.0, seconds), 1)
        return ViewLag(behind, seconds, trend, catch_up, read, read + behind, overdue, now)

    def _may_have_read(
        self,
        consumer: Consumer,
        plan: ViewPlan,
        counts: ViewCounts,
        held: Mapping[str, Bounds],
        wall: int,
    ) -> bool:
        """Whether a real-time query may have read all events since a commit that was up to date."""
        known_at = counts.read_at or self._first_seen.setdefault(plan.name, wall)
        patience = (self._commits_every + _GRACE) * 1000
        if plan.mode != "real_time" or counts.state != "running" or wall - known_at > patience:
            return False
        if not counts.read_at:
            return True
        for topic in plan.reads:
            before = counts.read_at - _BEFORE_COMMIT_MS
            due = self._offsets_after(consumer, topic, held[topic], before)
            read = counts.read.get(topic, {})
            if any(read.get(partition, 0) < offset for partition, offset in due.items()):
                return False
        return True

    def _offsets_after(
        self, consumer: Consumer, topic: str, held: Bounds, received: int
    ) -> dict[str, int]:
        """The offsets after the events that were received by then; only of streams."""
        if not received or not topic.startswith(self._streams):
            return {}
        asked = [TopicPartition(topic, partition, received + 1) for partition in held]
        found = consumer.offsets_for_times(asked, timeout=_SECONDS)
        return {
            str(p.partition): p.offset if p.offset >= 0 else held[p.partition][1] for p in found
        }


def _bounds(consumer: Consumer, topic: str) -> dict[int, tuple[int, int]]:
    partitions = consumer.list_topics(topic, timeout=_SECONDS).topics[topic].partitions
    return {
        partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), _SECONDS)
        for partition in partitions
    }
