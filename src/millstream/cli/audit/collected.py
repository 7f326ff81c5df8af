"""The audit's arithmetic: what all collectors counted in all their starts, as one row a stream.

Within one start accepted = logged + rejected + failed + shed + duplicates + pending + damaged, at
every moment. Over restarts:

- What a start leaves in its journal, the next one of that collector counts anew, as accepted and
  as `recovered`. So recovered events are taken off the accepted: each was counted once already.
- A start that ended in order wrote its last counts when it had stopped. What it left as pending
  must come back as recovered, or still be in the journal: else events were lost.
- One that was killed wrote its last counts up to a second earlier (longer, if Kafka was away). What
  it took in or settled after that nobody counted: it shows in the difference between what it had
  pending and what the next one found, `unseen`, and in the topics.
- What is lost with a damaged entry of the journal is counted on that collector's disk, and its
  newest report has all of it. It is what an earlier start left and no later one has found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from millstream.cli.shared.text import moment
from millstream.values.report import JournalDamage, JournalState, StreamCounts, Tier, ViewCounts

SETTLED = ("logged", "rejected", "failed", "shed", "duplicates", "damaged")


class Counted(msgspec.Struct):
    """The part of a `Report` that the audit needs; the rest is not even decoded."""

    tier: Tier
    instance: str
    at: int
    started_at: int
    streams: dict[str, StreamCounts] = {}
    views: msgspec.Raw = msgspec.Raw(b"{}")
    journal: JournalState | None = None
    ended: bool = False


@dataclass(slots=True)
class Row:
    """One stream, over all collectors."""

    accepted: int = 0
    logged: int = 0
    rejected: int = 0
    failed: int = 0
    shed: int = 0
    duplicates: int = 0
    damaged: int = 0  # accepted, and lost with damaged entries of journals
    pending: int = 0
    unseen: int = 0  # settled by a start that was killed before it could tell as what
    recovered: int = 0  # by a later start; not in the sum

    @property
    def off(self) -> int:
        """How many accepted events are accounted for nowhere."""
        settled: int = sum(getattr(self, name) for name in SETTLED)
        return self.accepted - settled - self.pending - self.unseen


@dataclass(slots=True)
class Ledger:
    """The newest counts of each start of each process."""

    starts: dict[tuple[Tier, str, int], Counted] = field(default_factory=dict)

    def views(self) -> dict[str, ViewCounts]:
        """What `analyze` told of its views last."""
        told = self.of("analyze")
        return views_of(max(told, key=lambda each: each.at)) if told else {}

    def take(self, values: Iterable[bytes | None]) -> None:
        """More records of the audit topic, in their order."""
        decode = msgspec.json.Decoder(Counted).decode
        for value in values:
            try:
                report = decode(value or b"")
            except msgspec.MsgspecError:
                continue  # of another version of us
            self.starts[report.tier, report.instance, report.started_at] = report

    def of(self, tier: Tier) -> list[Counted]:
        return [report for report in self.starts.values() if report.tier == tier]

    def collectors(self) -> dict[str, list[Counted]]:
        """Each collector's starts, the oldest first."""
        found: dict[str, list[Counted]] = {}
        for report in sorted(self.of("collect"), key=lambda report: report.started_at):
            found.setdefault(report.instance, []).append(report)
        return found

    def killed(self) -> Iterator[Counted]:
        """Starts that did not end in order, and that another one followed."""
        for starts in self.collectors().values():
            yield from (start for start in starts[:-1] if not start.ended)

    def rows(self) -> tuple[dict[str, Row], list[str]]:
        """A row for each stream, and what is wrong with the counts themselves."""
        rows: dict[str, Row] = {}
        problems: list[str] = []
        for starts in self.collectors().values():
            _add_collector(rows, starts, problems)
        for moved in self.of("command"):
            for name, counts in moved.streams.items():
                row = rows.setdefault(name, Row())
                for count in SETTLED:
                    setattr(row, count, getattr(row, count) + getattr(counts, count))
        problems += [
            f"{name}: {row.off:+,} events are accounted for nowhere"
            for name, row in rows.items()
            if row.off
        ]
        return rows, problems


def views_of(report: Counted) -> dict[str, ViewCounts]:
    return msgspec.json.decode(report.views, type=dict[str, ViewCounts])


def _add_collector(rows: dict[str, Row], starts: list[Counted], problems: list[str]) -> None:
    left: dict[str, int] = {}  # per stream, what earlier starts left in the journal
    unseen = {name: row.unseen for name, row in rows.items()}  # of the collectors before this one
    before: Counted | None = None
    for start in starts:
        for name, counts in start.streams.items():
            row = rows.setdefault(name, Row())
            row.accepted += counts.accepted - counts.recovered
            row.recovered += counts.recovered
            for count in SETTLED:
                setattr(row, count, getattr(row, count) + getattr(counts, count))
            if missing := counts.missing():
                problems.append(
                    f"{name}: collector {start.instance} counted {missing:+,} from nowhere "
                    f"in its start of {moment(start.started_at)}"
                )
            waits = left.get(name, 0) - counts.recovered
            if waits and (before is None or not before.ended):
                waits = _take_over(row, waits, start)
            elif waits < 0:
                problems.append(
                    f"{name}: collector {start.instance} found {-waits:,} events more in the "
                    f"journal at {moment(start.started_at)} than it had left there"
                )
                row.accepted, waits = row.accepted - waits, 0
            left[name] = waits + counts.pending
        before = start
    damage = starts[-1].journal.damage if starts[-1].journal is not None else None
    for name in damage.streams if damage is not None else ():
        rows.setdefault(name, Row())
        left.setdefault(name, 0)
    for name, waits in left.items():
        row = rows[name]
        pending = starts[-1].streams[name].pending if name in starts[-1].streams else 0
        lost = damage.streams.get(name, 0) if damage is not None else 0
        lost -= sum(s.streams[name].damaged for s in starts if name in s.streams)
        if lost > 0:
            waits -= _lose(row, lost, waits - pending, row.unseen - unseen.get(name, 0))
        _settle_rest(name, row, waits, starts[-1], problems)
    if damage is not None and damage.entries:
        problems.append(f"collector {starts[-1].instance}: {damage_text(damage)}")


def _lose(row: Row, lost: int, left: int, unseen: int) -> int:
    """Count events of damaged entries; how many of them an earlier start had left in the journal.

    The others were settled by nobody who could report it, or taken in after the last report.
    """
    row.damaged += lost
    from_left = min(lost, max(0, left))
    from_unseen = min(lost - from_left, unseen)
    row.unseen -= from_unseen
    row.accepted += lost - from_left - from_unseen
    return from_left


def damage_text(damage: JournalDamage) -> str:
    """What is lost, and what to do about it."""
    events = (
        f"{damage.events:,} events"
        if not damage.unread
        else (
            f"{damage.events:,} events, and those of {damage.unread:,} entries that cannot be read"
        )
    )
    return (
        f"{damage.entries:,} damaged entries of the journal: {events} were accepted and are lost; "
        "`millstream failed list` shows what is left of them, `millstream failed drop` "
        "acknowledges the loss"
    )


def _take_over(row: Row, waits: int, start: Counted) -> int:
    """After a kill, or an unknown start: what is still in the journal of what had been left.

    `waits` is how many fewer were found than had been told; below 0, how many more.
    """
    if waits < 0:
        row.accepted -= waits  # taken in after the last report
        return 0
    if start.journal is None or start.journal.entries:
        return waits  # it may not have been read back yet
    row.unseen += waits
    return 0


def _settle_rest(name: str, row: Row, waits: int, last: Counted, problems: list[str]) -> None:
    """`waits` must be in the journal of the last start, or be on the way to Kafka past it."""
    pending = last.streams[name].pending if name in last.streams else 0
    is_empty = last.journal is not None and last.journal.entries == 0
    rest = waits if not is_empty else 0 if last.ended else pending
    row.pending += rest
    if lost := waits - rest:
        problems.append(
            f"{name}: {lost:,} accepted events are neither in the journal of collector "
            f"{last.instance} nor settled"
        )
