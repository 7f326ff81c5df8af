"""What the tiers tell about themselves through the log: counts, and what each view is.

A `Report` goes to the audit topic every second, from every process. A command that moves events
writes one, too. A `ViewDescription` goes to the compacted topic of views whenever `analyze` starts
that view.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Tier = Literal["collect", "analyze", "serve", "command"]
Trend = Literal["", "steady", "growing", "shrinking"]


class Latency(msgspec.Struct, frozen=True):
    """Milliseconds, over the last seconds."""

    p50: float
    p99: float
    max: float
    count: int
    min: float = 0.0
    mean: float = 0.0


class StreamCounts(msgspec.Struct, omit_defaults=True):
    """One stream in one collector, since that process started.

    accepted = logged + rejected + failed + shed + duplicates + pending + damaged, at every moment.
    """

    accepted: int = 0  # handed in, whatever became of it
    logged: int = 0  # acknowledged by Kafka's in-sync replicas
    rejected: int = 0  # invalid, and in the rejected topic
    failed: int = 0  # refused by Kafka for good, and in the failed store
    shed: int = 0  # dropped under pressure, as the stream allows
    duplicates: int = 0  # the same as one before, by its id
    pending: int = 0  # in the journal, or on the way to Kafka
    damaged: int = 0  # taken in by this start, and lost with a damaged entry of the journal
    recovered: int = 0  # of the accepted, those that an earlier start had left in the journal
    rate: float = 0.0  # logged a second, over the last seconds
    latency_ms: Latency | None = None  # received to acknowledged
    journaled_ms: Latency | None = None  # received to on disk
    sent_ms: Latency | None = None  # received to handed to Kafka
    # Of a stream with event time; from here on, nothing adds up with the counts above.
    watermark: int = 0  # milliseconds since the epoch, 0 if unknown
    out_of_order: int = 0  # sent on after one that is dated later
    future: int = 0  # dated further ahead than the stream allows; they are in the log
    skew_ms: Latency | None = None  # received minus event time; below 0 is ahead
    # By analyze, of all events in the stream's topic since it first read that:
    in_order: int = 0  # no window missed them
    late: int = 0  # in the late topic, for a window missed them
    broken: int = 0  # there too: they have no event time
    lost: int = 0  # retention took them before they were read
    read: dict[str, int] = {}  # partition → the next offset to read
    read_from: dict[str, int] = {}  # partition → the first offset that was
    error: str = ""  # why the watermark may stand still

    def missing(self) -> int:
        """How many of the accepted events are accounted for nowhere: 0, or something is wrong."""
        settled = self.logged + self.rejected + self.failed + self.shed + self.duplicates
        return self.accepted - settled - self.pending - self.damaged


class SourceState(msgspec.Struct, omit_defaults=True):
    """One source that a collector pulls from."""

    stream: str
    kind: str
    url: str
    state: Literal["connecting", "connected", "listening", "retrying", "stopped"]
    received: int = 0  # messages
    lost: int = 0  # messages that never got in: dropped by the machine, too long, expired
    reconnects: int = 0
    error: str = ""
    warning: str = ""  # what else never got in, where nobody can count it
    rate: float = 0.0  # messages a second, over the last seconds
    behind: int | None = None  # how much the peer still has for us, where it says so
    behind_unit: str = ""  # of what: messages, bytes, files


class JournalDamage(msgspec.Struct, omit_defaults=True):
    """What a collector's journal has lost to damage on the disk, in all its starts."""

    entries: int = 0  # that were accepted and are lost, and that nobody has acknowledged
    events: int = 0  # in those, as far as it can be told
    bytes: int = 0  # of those
    unread: int = 0  # of those entries, the ones whose number of events cannot be told
    acknowledged: int = 0  # further entries: an operator has acknowledged that they are lost
    streams: dict[str, int] = {}  # events of each, acknowledged or not


class JournalState(msgspec.Struct, omit_defaults=True):
    """A collector's journal now."""

    entries: int = 0  # that wait for Kafka
    bytes: int = 0  # of those
    stored_bytes: int = 0  # what its files take: settled entries may share one with others
    max_bytes: int = 0
    broken: str = ""  # why it takes nothing; empty while it does
    damage: JournalDamage | None = None


class BrokenEvent(msgspec.Struct, frozen=True):
    """An event on which a view's query fails; it is set aside, so that the others flow."""

    topic: str
    partition: int
    offset: int
    reason: str  # Spark's
    at: int  # when it was set aside; milliseconds since the epoch

    @property
    def position(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


class LostEvents(msgspec.Struct, frozen=True):
    """Events that the log's retention took before a view's query came to them."""

    topic: str
    partition: int
    start: int  # the first that is lost
    stop: int  # the first that is still there
    at: int  # when it was found out; milliseconds since the epoch

    def __len__(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return (
            f"{len(self):,} events of {self.topic}/{self.partition}, {self.start}-{self.stop - 1}"
        )


class RebuildStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """A view that `analyze` computes anew from the log, beside the one that is served.

    When it is `done` the new one has taken the old one's place; when it has `failed`, none has.
    """

    state: Literal["waiting", "replaying", "starting", "ready", "done", "failed"]
    request: str = ""  # whose; empty: the pipeline changed
    topic: str = ""  # that it fills
    done: int = 0  # records read
    total: int = 0  # records to read
    error: str = ""
    since: int | None = None  # only events from then on; milliseconds since the epoch
    started_at: int = 0  # milliseconds since the epoch
    ended_at: int = 0  # likewise; 0 while it is under way
    left_s: float | None = None  # until all is read, as fast as it went so far


class ViewCounts(msgspec.Struct, omit_defaults=True):
    """One view in one process: `analyze` fills state and restarts, `serve` rows and latency."""

    state: Literal["starting", "running", "restarting", "failed", "stopped", ""] = ""
    restarts: int = 0
    error: str = ""
    rows: int = 0
    changes: int = 0
    rate: float = 0.0  # result records a second, over the last seconds
    analyze_ms: Latency | None = None  # event collected → result in the log
    serve_ms: Latency | None = None  # result in the log → in the served view
    position: str = ""
    # Input topic → partition → the next offset to read. By analyze: what its checkpoint has; by
    # serve: what the newest rows that carry a position came from. Either may lag behind the truth.
    read: dict[str, dict[str, int]] = {}
    read_at: int = 0  # when it was so; milliseconds since the epoch
    newest_received_at: int = 0  # by serve: when the newest event in the view was received
    broken: int = 0  # by analyze: events that were set aside because the query fails on them
    newest_broken: BrokenEvent | None = None
    lost: int = 0  # by analyze: events that retention took before the query came to them
    losses: list[LostEvents] = []  # the newest of them
    # By analyze: at most so many events, and seconds, behind the ends of its inputs.
    behind: int | None = None
    behind_s: float = 0.0
    trend: Trend = ""
    catch_up_s: float | None = None  # until it has caught up, if it does
    rebuild: RebuildStatus | None = None  # by analyze: the one under way, or else the last one
    watermark: int = 0  # by analyze: windows that ended by then are final; milliseconds, 0: unknown
    warning: str = ""  # by analyze: why the rows may be wrong, though the query runs
    dropped: int = 0  # by analyze: at least so many rows Spark left out that it should have counted
    shed: int = 0  # by analyze: of the events read, those that the view left out to keep up
    share: float = 1.0  # by analyze: of the events that come, those that it takes


class FieldDrift(msgspec.Struct, frozen=True):
    """A field of a stream whose values are spread otherwise than they were lately."""

    stream: str
    field: str
    at: int  # when it was seen to shift; milliseconds since the epoch
    score: float  # the population stability index; from 0.2 on it is called a shift
    before: str  # in words
    now: str


class ProcessReport(msgspec.Struct, omit_defaults=True):
    """What one process has counted since it started.

    Of tier `command`: what it moved from one count to another, once; so accepted is 0, and a
    count that it took from is below 0.
    """

    tier: Tier
    instance: str
    at: int  # milliseconds since the epoch
    started_at: int
    streams: dict[str, StreamCounts] = {}
    sources: list[SourceState] = []
    views: dict[str, ViewCounts] = {}
    clients: int = 0
    journal: JournalState | None = None
    drifts: list[FieldDrift] = []  # by analyze: fields that have shifted, until they come to rest
    ended: bool = False  # it ended in order: nothing is counted after this
