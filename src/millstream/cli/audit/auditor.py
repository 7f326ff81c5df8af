"""Compares what the tiers counted with the records that the topics contain."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

from millstream.cli.audit.collector_counts import Reports, StreamRow, TierReport
from millstream.cli.audit.view_audit import ViewAudit, ViewAuditor
from millstream.log.consumer import bounds, read_range
from millstream.log.settings import LogSettings
from millstream.log.topic_names import audit_topic, late_topic, rejected_topic, stream_topic
from millstream.log.topics import known_topics
from millstream.values import event
from millstream.values.clock import format_time, now_ms

_TIMEOUT = 30.0
_LIVE_MS = 5_000  # a collector that has not reported for so long is not running
_REPORT_SECONDS = 4.0  # to wait for a report of each running collector
_STARTING = 3.0  # seconds until a collector that was just started reports


@dataclass(frozen=True, slots=True)
class Written:
    """How many records were ever written to a topic; offsets also count deleted records.

    `at_least` was read before the counts that it is compared with, `at_most` after them.
    """

    at_least: int
    at_most: int
    held: int


@dataclass(slots=True)
class AuditResult:
    """The counts, the problems, and notes."""

    app: str
    rows: dict[str, StreamRow]
    written: dict[str, Written]  # to the streams' topics
    rejected: dict[str, Written]  # to their rejected topics
    problems: list[str]
    notes: list[str] = field(default_factory=list)
    view_audit: ViewAudit = field(default_factory=ViewAudit)

    def content(self) -> dict[str, Any]:
        return {
            "app": self.app,
            "adds_up": not self.problems,
            "streams": {
                name: {
                    **asdict(row),
                    "off": row.off,
                    "log": _content(self.written.get(name)),
                    "rejected_log": _content(self.rejected.get(name)),
                }
                for name, row in self.rows.items()
            },
            "time": {
                name: {**asdict(row), "set_aside": row.set_aside}
                for name, row in self.view_audit.streams.items()
            },
            "views": {name: asdict(row) for name, row in self.view_audit.views.items()},
            "problems": self.problems,
            "notes": self.notes,
        }


def _content(written: Written | None) -> dict[str, int] | None:
    return None if written is None else asdict(written)


class Auditor:
    """Reads the audit topic once, and then only what is new."""

    def __init__(self, log: LogSettings, app: str) -> None:
        self._log = log
        self._app = app
        self._topic = audit_topic(app)
        self._reports = Reports()
        self._view_auditor = ViewAuditor(log, app)
        self._next = 0
        self._is_whole = True  # no report has been deleted yet

    def check(self) -> AuditResult:
        """The result as of now. Blocks. LogError if Kafka does not answer."""
        result, surplus = self._check_once()
        deadline = time.monotonic() + _STARTING
        while surplus and time.monotonic() < deadline:
            # A collector that was just started may not have reported yet.
            time.sleep(0.5)
            result, surplus = self._check_once()
        return result

    def _check_once(self) -> tuple[AuditResult, bool]:
        """The result, and whether a topic has more records than were counted."""
        self._read()
        names = list(self._reports.rows()[0])
        topics = known_topics(self._log)
        before = self._ends(names, topics)
        self._view_auditor.prepare(self._reports, topics)
        since = now_ms()
        self._await_reports(since)
        counted, problems = self._reports.rows()
        rows = {name: counted[name] for name in names}
        after = self._ends(names, topics)
        result = AuditResult(self._app, rows, {}, {}, problems)
        for make, into in ((stream_topic, result.written), (rejected_topic, result.rejected)):
            for name in names:
                topic = make(self._app, name)
                if topic in before and topic in after:
                    first, end = after[topic]
                    into[name] = Written(before[topic][1], end, end - first)
        surplus = self._compare(result, since)
        result.view_audit = found = self._view_auditor.check(self._reports, topics, since)
        result.problems += found.problems
        result.notes += found.notes
        return result, surplus or found.is_off

    def find_duplicates(self, result: AuditResult) -> None:
        """Read all records of the topics, and report events that are there more than once."""
        there = [(name, stream_topic(self._app, name)) for name in result.written]
        there += [(name, rejected_topic(self._app, name)) for name in result.rejected]
        there += [(name, late_topic(self._app, name)) for name in result.view_audit.streams]
        for name, topic in there:
            looked_at, doubles = self._count_duplicates(topic)
            result.notes.append(f"{topic}: {looked_at:,} records were looked at")
            if doubles:
                result.problems.append(f"{name}: {doubles:,} events are more than once in {topic}")

    def _count_duplicates(self, topic: str) -> tuple[int, int]:
        seen: dict[str, set[tuple[int, int]]] = {}
        looked_at = doubles = 0
        for partition, (first, end) in bounds(self._log, topic, _TIMEOUT).items():
            if first == end:
                continue
            for record in read_range(self._log, topic, partition, first, end, patience=_TIMEOUT):
                looked_at += 1
                if event.LATE_ERROR in dict(record.headers):
                    continue  # there is one for each view whose query fails on it
                if identity := event.identity(record.headers):
                    collector, sequence, index = identity
                    numbers = seen.setdefault(collector, set())
                    doubles += (sequence, index) in numbers
                    numbers.add((sequence, index))
        return looked_at, doubles

    def _read(self) -> None:
        first, end = bounds(self._log, self._topic, _TIMEOUT).get(0, (0, 0))
        self._is_whole = self._is_whole and first <= self._next
        start = max(first, self._next)
        if start < end:
            records = read_range(self._log, self._topic, 0, start, end, patience=_TIMEOUT)
            self._reports.add(record.value for record in records)
        self._next = max(start, end)

    def _await_reports(self, since: int) -> None:
        """Read reports until every running collector has reported after this time."""
        deadline = time.monotonic() + _REPORT_SECONDS
        while time.monotonic() < deadline and self._awaited(since):
            time.sleep(0.1)
            self._read()

    def _awaited(self, since: int) -> list[TierReport]:
        last = [starts[-1] for starts in self._reports.collectors().values()]
        if (analyze := self._reports.newest_of_analyze()) is not None:
            last.append(analyze)
        return [each for each in last if not each.ended and since - _LIVE_MS < each.at < since]

    def _ends(self, names: list[str], topics: set[str]) -> dict[str, tuple[int, int]]:
        """Per topic, how many records retention deleted, and how many were ever written."""
        found = {}
        for name in names:
            for topic in (stream_topic(self._app, name), rejected_topic(self._app, name)):
                if topic in topics:
                    held = bounds(self._log, topic, _TIMEOUT).values()
                    found[topic] = (sum(first for first, _ in held), sum(end for _, end in held))
        return found

    def _compare(self, result: AuditResult, since: int) -> bool:
        silent = [
            starts[-1]
            for starts in self._reports.collectors().values()
            if not starts[-1].ended and starts[-1].at < since
        ]
        killed = [*self._reports.killed(), *silent]
        surplus = False
        for name, row in result.rows.items():
            pairs = (
                ("logged", row.logged, result.written.get(name), stream_topic),
                ("rejected", row.rejected, result.rejected.get(name), rejected_topic),
            )
            for word, counted, written, make in pairs:
                topic = make(self._app, name)
                if written is None:
                    if counted:
                        result.problems.append(f"{name}: there is no topic {topic} any more")
                    continue
                if missing := max(0, counted - written.at_most):
                    result.problems.append(
                        f"{name}: {counted:,} events were counted as {word}, but {topic} was given "
                        f"{written.at_most:,}: {missing:,} are missing, or it was recreated"
                    )
                more = written.at_least - counted - row.pending - row.unseen
                if more > 0:
                    surplus = True
                    self._add_surplus(result, name, topic, more, word, killed)
                if written.held < written.at_most:
                    gone = written.at_most - written.held
                    result.notes.append(f"{topic}: {gone:,} records are past its retention")
        self._add_notes(result, killed)
        return surplus and not killed and self._is_whole

    def _add_surplus(
        self,
        result: AuditResult,
        name: str,
        topic: str,
        more: int,
        word: str,
        killed: list[TierReport],
    ) -> None:
        words = f"{topic} was given {more:,} records more than were counted as {word}"
        if killed or not self._is_whole:
            result.notes.append(f"{words}; not all counts are known, see below")
        else:
            result.problems.append(
                f"{name}: {words}: written twice, by another program, or by `millstream failed "
                "retry` when it was killed"
            )

    def _add_notes(self, result: AuditResult, killed: list[TierReport]) -> None:
        for start in killed:
            result.notes.append(
                f"collector {start.instance} was killed or does not report: what it did after "
                f"{format_time(start.at)} is not in its counts"
            )
        if not self._is_whole:
            result.notes.append(
                f"{self._topic} has deleted its oldest reports: starts that ended before "
                "are not counted, so the topics may hold more than the table"
            )
        for collector, starts in self._reports.collectors().items():
            journal = starts[-1].journal
            if journal is not None and journal.damage is not None and journal.damage.acknowledged:
                result.notes.append(
                    f"collector {collector}: {journal.damage.acknowledged:,} damaged entries of "
                    "its journal are lost, and that was acknowledged"
                )
        if not result.rows:
            result.notes.append("no collector has reported yet")
        for name, counts in self._reports.views().items():
            if (newest := counts.newest_broken) is not None:
                result.notes.append(
                    f"view {name}: {counts.broken:,} events were set aside because its query fails "
                    f"on them, the newest {newest.position}: {newest.reason}"
                )
            for loss in counts.losses:
                result.notes.append(
                    f"view {name} continues without {loss}: deleted by retention before it was read"
                )
