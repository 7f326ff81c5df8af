"""Adds up the counts of all collectors and all their starts: one row per stream.

Within one start, accepted = logged + rejected + failed + shed + duplicates + pending + damaged at
any time. After a restart:

- Events that a start leaves in its journal are counted again by the next start of that collector,
  as accepted and as `recovered`. So recovered events are subtracted from the accepted ones.
- A start that was stopped reported its final counts. Its pending events must be recovered by the
  next start, or still be in the journal: otherwise events were lost.
- A start that was killed reported up to a second earlier (longer if Kafka was down). Events that it
  accepted or settled later are in no report. They show in the topics, and as `unseen`: the
  difference between its pending events and those that the next start found.
- Events in damaged entries of the journal are counted on that collector's disk, and its newest
  report contains all of them. An earlier start left them, and no later one found them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from millstream.values.clock import format_time
from millstream.values.report import JournalDamage, JournalState, StreamCounts, Tier, ViewCounts

SETTLED = ("logged", "rejected", "failed", "shed", "duplicates", "damaged")


class TierReport(msgspec.Struct):
    """The fields of a `ProcessReport` that the audit needs; the others are not decoded."""

    tier: Tier
    instance: str
    at: int
    started_at: int
    streams: dict[str, StreamCounts] = {}
    views: msgspec.Raw = msgspec.Raw(b"{}")
    journal: JournalState | None = None
    ended: bool = False


@dataclass(slots=True)
class StreamRow:
    """One stream, over all collectors."""

    accepted: int = 0
    logged: int = 0
    rejected: int = 0
    failed: int = 0
    shed: int = 0
    duplicates: int = 0
    damaged: int = 0  # accepted, and lost in damaged entries of journals
    pending: int = 0
    unseen: int = 0  # settled by a start that was killed before it reported how
    recovered: int = 0  # by a later start; not in the sum

    @property
    def off(self) -> int:
        """How many accepted events are not accounted for."""
        settled: int = sum(getattr(self, name) for name in SETTLED)
        return self.accepted - settled - self.pending - self.unseen


@dataclass(slots=True)
class Reports:
    """The newest counts of each start of each process."""

    starts: dict[tuple[Tier, str, int], TierReport] = field(default_factory=dict)

    def views(self) -> dict[str, ViewCounts]:
        """The views in the newest report of `analyze`."""
        newest = self.newest_of_analyze()
        return views_of(newest) if newest is not None else {}

    def newest_of_analyze(self) -> TierReport | None:
        return max(self.of("analyze"), key=lambda report: report.at, default=None)

    def add(self, values: Iterable[bytes | None]) -> None:
        """Add records of the audit topic, in their order."""
        decode = msgspec.json.Decoder(TierReport).decode
        for value in values:
            try:
                report = decode(value or b"")
            except msgspec.MsgspecError:
                continue  # written by another version
            self.starts[report.tier, report.instance, report.started_at] = report

    def of(self, tier: Tier) -> list[TierReport]:
        return [report for report in self.starts.values() if report.tier == tier]

    def collectors(self) -> dict[str, list[TierReport]]:
        """Each collector's starts, the oldest first."""
        found: dict[str, list[TierReport]] = {}
        for report in sorted(self.of("collect"), key=lambda report: report.started_at):
            found.setdefault(report.instance, []).append(report)
        return found

    def killed(self) -> Iterator[TierReport]:
        """Starts that were killed, and followed by another start."""
        for starts in self.collectors().values():
            yield from (start for start in starts[:-1] if not start.ended)

    def rows(self) -> tuple[dict[str, StreamRow], list[str]]:
        """A row for each stream, and the problems in the counts themselves."""
        rows: dict[str, StreamRow] = {}
        problems: list[str] = []
        for starts in self.collectors().values():
            _add_collector(rows, starts, problems)
        for moved in self.of("command"):
            for name, counts in moved.streams.items():
                row = rows.setdefault(name, StreamRow())
                for count in SETTLED:
                    setattr(row, count, getattr(row, count) + getattr(counts, count))
        problems += [
            f"{name}: {row.off:+,} events are not accounted for"
            for name, row in rows.items()
            if row.off
        ]
        return rows, problems


def views_of(report: TierReport) -> dict[str, ViewCounts]:
    return msgspec.json.decode(report.views, type=dict[str, ViewCounts])


def _add_collector(
    rows: dict[str, StreamRow], starts: list[TierReport], problems: list[str]
) -> None:
    left: dict[str, int] = {}  # per stream, what earlier starts left in the journal
    unseen = {name: row.unseen for name, row in rows.items()}  # of the collectors before this one
    before: TierReport | None = None
    for start in starts:
        for name, counts in start.streams.items():
            row = rows.setdefault(name, StreamRow())
            row.accepted += counts.accepted - counts.recovered
            row.recovered += counts.recovered
            for count in SETTLED:
                setattr(row, count, getattr(row, count) + getattr(counts, count))
            if missing := counts.missing():
                problems.append(
                    f"{name}: collector {start.instance} counted {missing:+,} that do not add up "
                    f"in its start of {format_time(start.started_at)}"
                )
            waits = left.get(name, 0) - counts.recovered
            if waits and (before is None or not before.ended):
                waits = _settle_after_kill(row, waits, start)
            elif waits < 0:
                problems.append(
                    f"{name}: collector {start.instance} found {-waits:,} events more in the "
                    f"journal at {format_time(start.started_at)} than it had left there"
                )
                row.accepted, waits = row.accepted - waits, 0
            left[name] = waits + counts.pending
        before = start
    damage = starts[-1].journal.damage if starts[-1].journal is not None else None
    for name in damage.streams if damage is not None else ():
        rows.setdefault(name, StreamRow())
        left.setdefault(name, 0)
    for name, waits in left.items():
        row = rows[name]
        pending = starts[-1].streams[name].pending if name in starts[-1].streams else 0
        lost = damage.streams.get(name, 0) if damage is not None else 0
        lost -= sum(s.streams[name].damaged for s in starts if name in s.streams)
        if lost > 0:
            waits -= _count_lost(row, lost, waits - pending, row.unseen - unseen.get(name, 0))
        _add_pending(name, row, waits, starts[-1], problems)
    if damage is not None and damage.entries:
        problems.append(f"collector {starts[-1].instance}: {damage_text(damage)}")


def _count_lost(row: StreamRow, lost: int, left: int, unseen: int) -> int:
    """Count lost events; returns how many of them an earlier start had left in the journal.

    The others were settled by a start that was killed, or accepted after the last report.
    """
    row.damaged += lost
    from_left = min(lost, max(0, left))
    from_unseen = min(lost - from_left, unseen)
    row.unseen -= from_unseen
    row.accepted += lost - from_left - from_unseen
    return from_left


def damage_text(damage: JournalDamage) -> str:
    """What is lost, and what to do about it."""
    events = f"{damage.events:,} events"
    if damage.unread:
        events += f", and those of {damage.unread:,} entries that cannot be read"
    return (
        f"{damage.entries:,} damaged entries of the journal: {events} were accepted and are lost; "
        "`millstream failed list` shows what is left of them, `millstream failed drop` "
        "acknowledges the loss"
    )


def _settle_after_kill(row: StreamRow, waits: int, start: TierReport) -> int:
    """After a kill, or an unknown start: how many events are still in the journal.

    `waits` is how many fewer events were found than were reported; below 0, how many more.
    """
    if waits < 0:
        row.accepted -= waits  # accepted after the last report
        return 0
    if start.journal is None or start.journal.entries:
        return waits  # it may not have been read back yet
    row.unseen += waits
    return 0


def _add_pending(
    name: str, row: StreamRow, waits: int, last: TierReport, problems: list[str]
) -> None:
    """Count `waits` as pending: in the journal of the last start, or being sent to Kafka."""
    pending = last.streams[name].pending if name in last.streams else 0
    is_empty = last.journal is not None and last.journal.entries == 0
    rest = waits if not is_empty else 0 if last.ended else pending
    row.pending += rest
    if lost := waits - rest:
        problems.append(
            f"{name}: {lost:,} accepted events are neither in the journal of collector "
            f"{last.instance} nor settled"
        )
