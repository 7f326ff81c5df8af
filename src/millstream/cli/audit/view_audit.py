"""Checks which logged events are in views, and which are late.

It compares two independent counts. `analyze` counts the late events in the same transaction that
writes them; the audit counts the records of the late topic. It also compares how far each view has
read its topics, by its checkpoint, with the records that the topics hold. Records that retention
deleted before a view read them are lost to that view.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from millstream.cli.audit.collector_counts import Reports, views_of
from millstream.log.consumer import bounds, read_range
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.log.topic_names import late_topic, stream_topic
from millstream.values.clock import format_time
from millstream.values.event import LATE_ERROR, LATE_REASON, LATE_VIEWS
from millstream.values.report import StreamCounts, ViewCounts

_TIMEOUT = 30.0


@dataclass(slots=True)
class EventTimeRow:
    """One stream's events, by their time: in order, late and so on."""

    in_order: int = 0
    late: int = 0
    future: int = 0
    broken: int = 0
    lost: int = 0  # deleted by retention before they were checked
    waiting: int = 0  # in the log, and not checked yet
    held: int = 0  # records in the late topic
    off: int = 0  # read, and not counted
    watermark: int = 0

    @property
    def set_aside(self) -> int:
        return self.late + self.future + self.broken


@dataclass(slots=True)
class ViewRow:
    """One view: logged = read + waiting, over the topics that it reads."""

    logged: int = 0
    read: int = 0  # at least: according to its checkpoint
    waiting: int = 0  # at most
    lost: int = 0  # of the read ones: deleted by retention before
    late: int = 0  # of the read ones: missing in some window of the view
    shed: int = 0  # of the read ones: skipped by the view to keep up
    watermark: int = 0


@dataclass(slots=True)
class LateTopic:
    """The records of one late topic; each call of `read` reads only the new ones."""

    log: LogSettings
    name: str
    next: dict[int, int] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    views: Counter[str] = field(default_factory=Counter)
    is_whole: bool = True  # retention has deleted nothing

    def read(self) -> int:
        """Returns how many late records were found so far. Blocks."""
        for partition, (first, end) in bounds(self.log, self.name, _TIMEOUT).items():
            start = max(first, self.next.get(partition, 0))
            self.is_whole = self.is_whole and first == 0
            if start < end:
                found = read_range(self.log, self.name, partition, start, end, patience=_TIMEOUT)
                self._count(partition, found)
        return self.reasons.total()

    def _count(self, partition: int, records: Iterable[Record]) -> None:
        # The end of a transaction also has an offset, but is no record: so records are counted.
        for record in records:
            self.next[partition] = record.offset + 1
            headers = dict(record.headers)
            if LATE_ERROR in headers:  # set aside by a view's query, which counts it
                continue
            self.reasons[headers.get(LATE_REASON, b"").decode("utf-8", "replace")] += 1
            try:
                missed = msgspec.json.decode(headers.get(LATE_VIEWS, b"{}"), type=_VIEWS)
            except msgspec.MsgspecError:
                continue
            self.views.update(missed.keys())


_VIEWS = dict[str, msgspec.Raw]


@dataclass(slots=True)
class ViewAudit:
    """The reports of `analyze`, compared with the log."""

    streams: dict[str, EventTimeRow] = field(default_factory=dict)
    views: dict[str, ViewRow] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_off: bool = False  # in a way that may correct itself soon


class ViewAuditor:
    """Audits event times and views; may be called again and again."""

    def __init__(self, log: LogSettings, app: str) -> None:
        self._log, self._app = log, app
        self._late: dict[str, LateTopic] = {}
        self._before: dict[str, int] = {}

    def prepare(self, reports: Reports, topics: set[str]) -> None:
        """Count the late records before the report that they are compared with."""
        report = reports.newest_of_analyze()
        for name in report.streams if report is not None else ():
            topic = late_topic(self._app, name)
            if topic in topics:
                self._late.setdefault(name, LateTopic(self._log, topic))
                self._before[name] = self._late[name].read()

    def check(self, reports: Reports, topics: set[str], since: int) -> ViewAudit:
        """The result. Blocks."""
        found, report = ViewAudit(), reports.newest_of_analyze()
        if report is None:
            found.notes.append("analyze has not reported: what is in views is not known")
            return found
        is_there = report.at >= since and not report.ended
        if not is_there:
            found.notes.append(
                f"analyze has not reported since {format_time(report.at)}: "
                "what it did after that is not in its counts"
            )
        for name, counts in report.streams.items():
            self._stream(found, name, counts, topics, is_there)
        for name, view in views_of(report).items():
            self._view(found, name, view, topics)
        return found

    def _stream(
        self,
        found: ViewAudit,
        name: str,
        counts: StreamCounts,
        topics: set[str],
        is_there: bool,
    ) -> None:
        read = sum(counts.read.values()) - sum(counts.read_from.values())
        row = found.streams[name] = EventTimeRow(
            *(counts.in_order, counts.late, counts.future, counts.broken, counts.lost),
            watermark=counts.watermark,
        )
        row.off = read - row.in_order - row.set_aside - row.lost
        if row.off:
            found.problems.append(f"{name}: {row.off:+,} events were read and not counted")
        topic = stream_topic(self._app, name)
        if topic in topics:
            held = bounds(self._log, topic, _TIMEOUT)
            ends = {str(partition): end for partition, (_, end) in held.items()}
            row.waiting = sum(max(0, end - counts.read.get(p, 0)) for p, end in ends.items())
        if (late := late_topic(self._app, name)) not in topics:
            if row.set_aside:
                found.problems.append(
                    f"{name}: {row.set_aside:,} events were set aside, but there is no topic "
                    f"{late} any more"
                )
        elif name in self._late:
            self._compare(found, name, row, is_there)
        if row.lost:
            found.problems.append(
                f"{name}: retention deleted {row.lost:,} events before it was known whether they "
                "were late"
            )

    def _compare(self, found: ViewAudit, name: str, row: EventTimeRow, is_there: bool) -> None:
        late = self._late[name]
        at_least, row.held = self._before.get(name, 0), late.read()
        if not late.is_whole:
            found.notes.append(f"{late.name}: its oldest records are past its retention")
        elif row.set_aside > row.held:
            found.is_off = True
            found.problems.append(
                f"{name}: {row.set_aside:,} events were set aside, but {late.name} holds "
                f"{row.held:,}: {row.set_aside - row.held:,} are missing, or it was recreated"
            )
        if at_least > row.set_aside:
            found.is_off = found.is_off or is_there
            words = (
                f"{late.name} holds {at_least - row.set_aside:,} records more than were set aside"
            )
            if is_there:
                found.problems.append(f"{name}: {words}: written twice, or by another program")
            else:
                found.notes.append(words)

    def _view(self, found: ViewAudit, name: str, view: ViewCounts, topics: set[str]) -> None:
        row = found.views[name] = ViewRow(watermark=view.watermark)
        row.late = sum(late.views[name] for late in self._late.values())
        row.shed = view.shed
        for topic, read in view.read.items():
            if topic not in topics:
                found.problems.append(f"view {name} reads {topic}, which is not there any more")
                continue
            for partition, (first, end) in bounds(self._log, topic, _TIMEOUT).items():
                at = read.get(str(partition), 0)
                row.logged += end
                row.read += min(at, end)
                row.waiting += max(0, end - at)
                row.lost += max(0, first - at)
                if at > end:
                    found.problems.append(
                        f"view {name} has read {at:,} records of {topic}, partition {partition}, "
                        f"which has {end:,}: it lost its newest records, or was recreated"
                    )
        if row.shed > row.read:
            found.problems.append(
                f"view {name}: {row.shed:,} events were counted as shed, of {row.read:,} read"
            )
        if view.share < 1:
            found.notes.append(f"view {name} takes {view.share:.1%} of its input to keep up")
        if view.dropped:
            found.problems.append(
                f"view {name}: Spark left out at least {view.dropped:,} rows whose state was "
                f"deleted; `millstream rebuild {name}` adds them"
            )
        if not view.read:
            found.notes.append(f"view {name} has committed nothing yet")
        if row.lost:
            found.problems.append(
                f"view {name}: retention deleted {row.lost:,} events before they were read; "
                f"`millstream rebuild {name}` computes it from what the log has"
            )
