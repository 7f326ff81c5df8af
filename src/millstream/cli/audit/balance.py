"""The audit's two sides: what was counted, and what the topics were given."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

from millstream.cli.audit.collected import Counted, Ledger, Row
from millstream.cli.audit.completeness import Completeness, Watch, newest
from millstream.cli.shared.text import moment
from millstream.errors import LogError, MillstreamError
from millstream.log.consumer import bounds, read_range
from millstream.log.settings import LogSettings
from millstream.log.topic_contents import check_app
from millstream.log.topic_names import audit_topic, late_topic, rejected_topic, stream_topic
from millstream.log.topics import known_topics
from millstream.values import event
from millstream.values.clock import now_ms

_SECONDS = 30.0
_LIVE_MS = 5_000  # a collector that has not reported for so long is not there
_PATIENCE = 4.0  # seconds to wait for a report of each that is
_STARTING = 3.0  # seconds in which one that has just started reports


@dataclass(frozen=True, slots=True)
class Written:
    """How many records a topic was ever given: its offsets count on when retention deletes some.

    `at_least` before the counts that it is compared with were made, `at_most` after.
    """

    at_least: int
    at_most: int
    held: int


@dataclass(slots=True)
class Balance:
    """The table, what is off, and what is worth knowing about it."""

    app: str
    rows: dict[str, Row]
    written: dict[str, Written]  # to the streams' topics
    rejected: dict[str, Written]  # to their rejected topics
    problems: list[str]
    notes: list[str] = field(default_factory=list)
    completeness: Completeness = field(default_factory=Completeness)

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
                for name, row in self.completeness.streams.items()
            },
            "views": {name: asdict(row) for name, row in self.completeness.views.items()},
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
        self._ledger = Ledger()
        self._watch = Watch(log, app)
        self._next = 0
        self._is_whole = True  # no report has been deleted yet

    def balance(self) -> Balance:
        """How it stands now; blocks. LogError if Kafka does not answer."""
        balance, surplus = self._look()
        deadline = time.monotonic() + _STARTING
        while surplus and time.monotonic() < deadline:
            # A collector that has just started may not have reported yet.
            time.sleep(0.5)
            balance, surplus = self._look()
        return balance

    def _look(self) -> tuple[Balance, bool]:
        """The balance, and whether a topic has more than it should."""
        self._read()
        names = list(self._ledger.rows()[0])
        topics = known_topics(self._log)
        before = self._ends(names, topics)
        self._watch.prepare(self._ledger, topics)
        since = now_ms()
        self._await_reports(since)
        counted, problems = self._ledger.rows()
        rows = {name: counted[name] for name in names}
        after = self._ends(names, topics)
        balance = Balance(self._app, rows, {}, {}, problems)
        for make, into in ((stream_topic, balance.written), (rejected_topic, balance.rejected)):
            for name in names:
                topic = make(self._app, name)
                if topic in before and topic in after:
                    first, end = after[topic]
                    into[name] = Written(before[topic][1], end, end - first)
        surplus = self._judge(balance, since)
        balance.completeness = found = self._watch.look(self._ledger, topics, since)
        balance.problems += found.problems
        balance.notes += found.notes
        return balance, surplus or found.is_off

    def find_doubles(self, balance: Balance) -> None:
        """Read all that the topics hold, and name those in which an event is more than once."""
        there = [(name, stream_topic(self._app, name)) for name in balance.written]
        there += [(name, rejected_topic(self._app, name)) for name in balance.rejected]
        there += [(name, late_topic(self._app, name)) for name in balance.completeness.streams]
        for name, topic in there:
            looked_at, doubles = self._doubles(topic)
            balance.notes.append(f"{topic}: {looked_at:,} records were looked at")
            if doubles:
                balance.problems.append(f"{name}: {doubles:,} events are more than once in {topic}")

    def _doubles(self, topic: str) -> tuple[int, int]:
        seen: dict[str, set[tuple[int, int]]] = {}
        looked_at = doubles = 0
        for partition, (first, end) in bounds(self._log, topic, _SECONDS).items():
            if first == end:
                continue
            for record in read_range(self._log, topic, partition, first, end, patience=_SECONDS):
                looked_at += 1
                if event.LATE_ERROR in dict(record.headers):
                    continue  # one for each view that it breaks
                if identity := event.identity(record.headers):
                    collector, sequence, index = identity
                    numbers = seen.setdefault(collector, set())
                    doubles += (sequence, index) in numbers
                    numbers.add((sequence, index))
        return looked_at, doubles

    def _read(self) -> None:
        first, end = bounds(self._log, self._topic, _SECONDS).get(0, (0, 0))
        self._is_whole = self._is_whole and first <= self._next
        start = max(first, self._next)
        if start < end:
            records = read_range(self._log, self._topic, 0, start, end, patience=_SECONDS)
            self._ledger.take(record.value for record in records)
        self._next = max(start, end)

    def _await_reports(self, since: int) -> None:
        """Read on until each collector that is there has told its counts after that moment."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline and any(self._is_awaited(since)):
            time.sleep(0.1)
            self._read()

    def _is_awaited(self, since: int) -> list[Counted]:
        last = [starts[-1] for starts in self._ledger.collectors().values()]
        if (analyze := newest(self._ledger)) is not None:
            last.append(analyze)
        return [each for each in last if not each.ended and since - _LIVE_MS < each.at < since]

    def _ends(self, names: list[str], topics: set[str]) -> dict[str, tuple[int, int]]:
        """Per topic, how many records it has lost to retention, and was given in all."""
        found = {}
        for name in names:
            for topic in (stream_topic(self._app, name), rejected_topic(self._app, name)):
                if topic in topics:
                    held = bounds(self._log, topic, _SECONDS).values()
                    found[topic] = (sum(first for first, _ in held), sum(end for _, end in held))
        return found

    def _judge(self, balance: Balance, since: int) -> bool:
        silent = [
            starts[-1]
            for starts in self._ledger.collectors().values()
            if not starts[-1].ended and starts[-1].at < since
        ]
        killed = [*self._ledger.killed(), *silent]
        surplus = False
        for name, row in balance.rows.items():
            pairs = (
                ("logged", row.logged, balance.written.get(name), stream_topic),
                ("rejected", row.rejected, balance.rejected.get(name), rejected_topic),
            )
            for word, counted, written, make in pairs:
                topic = make(self._app, name)
                if written is None:
                    if counted:
                        balance.problems.append(f"{name}: there is no topic {topic} any more")
                    continue
                if missing := max(0, counted - written.at_most):
                    balance.problems.append(
                        f"{name}: {counted:,} events were counted as {word}, but {topic} was given "
                        f"{written.at_most:,}: {missing:,} are missing, or it was made anew"
                    )
                more = written.at_least - counted - row.pending - row.unseen
                if more > 0:
                    surplus = True
                    self._judge_more(balance, name, topic, more, word, killed)
                if written.held < written.at_most:
                    gone = written.at_most - written.held
                    balance.notes.append(f"{topic}: {gone:,} records are past its retention")
        self._note(balance, killed)
        return surplus and not killed and self._is_whole

    def _judge_more(
        self, balance: Balance, name: str, topic: str, more: int, word: str, killed: list[Counted]
    ) -> None:
        words = f"{topic} was given {more:,} records more than were counted as {word}"
        if killed or not self._is_whole:
            balance.notes.append(f"{words}; not all counts are known, see below")
        else:
            balance.problems.append(
                f"{name}: {words}: written twice, by another program, or by `millstream failed "
                "retry` when it was killed"
            )

    def _note(self, balance: Balance, killed: list[Counted]) -> None:
        for start in killed:
            balance.notes.append(
                f"collector {start.instance} was killed or is not heard of: what it did after "
                f"{moment(start.at)} is not in its counts"
            )
        if not self._is_whole:
            balance.notes.append(
                f"{self._topic} has deleted its oldest reports: starts that ended before "
                "are not counted, so the topics may hold more than the table"
            )
        for collector, starts in self._ledger.collectors().items():
            journal = starts[-1].journal
            if journal is not None and journal.damage is not None and journal.damage.acknowledged:
                balance.notes.append(
                    f"collector {collector}: {journal.damage.acknowledged:,} damaged entries of "
                    "its journal are lost, and that was acknowledged"
                )
        if not balance.rows:
            balance.notes.append("no collector has reported yet")
        for name, counts in self._ledger.views().items():
            if (newest := counts.newest_broken) is not None:
                balance.notes.append(
                    f"view {name}: {counts.broken:,} events were set aside because its query fails "
                    f"on them, the newest {newest.position}: {newest.reason}"
                )
            for loss in counts.losses:
                balance.notes.append(
                    f"view {name} goes on without {loss}: past retention before it came to them"
                )


def app_of(log: LogSettings, app: str = "") -> str:
    """The name of the pipeline that the log has; MillstreamError if not exactly one.

    If `app` was asked for, it is that one, or an error.
    """
    topics = known_topics(log)
    found = sorted(name.removesuffix(".audit") for name in topics if name.endswith(".audit"))
    if app:
        check_app(app, found)
        return app
    if len(found) == 1:
        return found[0]
    if not found:
        raise LogError("the log has no audit topic", remedy="start the system once")
    raise MillstreamError(
        f"the log has several pipelines: {', '.join(found)}", remedy="say which one: --app NAME"
    )
