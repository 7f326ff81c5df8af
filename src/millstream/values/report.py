"""What the tiers report about themselves through the log.

Every process writes a `ProcessReport` to the audit topic each second. A command that moves events
writes one, too.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Tier = Literal["collect", "analyze", "serve", "command"]
Trend = Literal["", "steady", "growing", "shrinking"]


class Latency(msgspec.Struct, frozen=True):
    """Latency in milliseconds, over the last seconds."""

    p50: float
    p99: float
    max: float
    count: int
    min: float = 0.0
    mean: float = 0.0


class StreamCounts(msgspec.Struct, omit_defaults=True):
    """Counts of one stream in one process, since it started.

    accepted = logged + rejected + failed + shed + duplicates + pending + damaged, at every moment.
    """

    accepted: int = 0  # received from senders, whatever happened then
    logged: int = 0  # acknowledged by Kafka's in-sync replicas
    rejected: int = 0  # invalid, and in the rejected topic
    failed: int = 0  # permanently refused by Kafka, and in the failed store
    shed: int = 0  # dropped under pressure, as the stream allows
    duplicates: int = 0  # dropped because the id was seen before
    pending: int = 0  # in the journal, or being sent to Kafka
    damaged: int = 0  # accepted since this start, and lost with a damaged journal entry
    recovered: int = 0  # of the accepted: left in the journal by an earlier start
    rate: float = 0.0  # logged per second, over the last seconds
    latency_ms: Latency | None = None  # from received to acknowledged by Kafka
    journaled_ms: Latency | None = None  # from received to on disk
    sent_ms: Latency | None = None  # from received to sent to Kafka
    # Only with event time. The counts from here on are not part of the equation above.
    watermark: int = 0  # milliseconds since the epoch, 0 if unknown
    out_of_order: int = 0  # sent after an event with a later event time
    future: int = 0  # dated further ahead than the stream allows; also in the log
    skew_ms: Latency | None = None  # received minus event time; negative: ahead
    # Written by analyze, for all events in the stream's topic since its first read:
    in_order: int = 0  # in all windows
    late: int = 0  # too late for a window, and in the late topic
    broken: int = 0  # without event time, and in the late topic
    lost: int = 0  # deleted by retention before they were read
    read: dict[str, int] = {}  # partition → the next offset to read
    read_from: dict[str, int] = {}  # partition → the first offset that was read
    error: str = ""  # why the watermark may not advance

    def missing(self) -> int:
        """How many accepted events are in no other count; not 0 means a bug."""
        settled = self.logged + self.rejected + self.failed + self.shed + self.duplicates
        return self.accepted - settled - self.pending - self.damaged


class SourceState(msgspec.Struct, omit_defaults=True):
    """The state of one source in a collector."""

    stream: str
    kind: str
    url: str
    state: Literal["connecting", "connected", "listening", "retrying", "stopped"]
    received: int = 0  # messages
    lost: int = 0  # messages lost for good: dropped by the kernel, too long, expired
    reconnects: int = 0
    error: str = ""
    warning: str = ""  # losses that cannot be counted
    rate: float = 0.0  # messages per second, over the last seconds
    behind: int | None = None  # how much is still to be read, if the peer reports it
    behind_unit: str = ""  # messages, bytes or files


class JournalDamage(msgspec.Struct, omit_defaults=True):
    """What a collector's journal has lost to disk damage, over all its starts."""

    entries: int = 0  # lost entries that no operator has acknowledged
    events: int = 0  # in those entries, as far as known
    bytes: int = 0  # of those entries
    unread: int = 0  # those entries whose number of events is unknown
    acknowledged: int = 0  # lost entries that an operator has acknowledged
    streams: dict[str, int] = {}  # lost events per stream, acknowledged or not


class JournalState(msgspec.Struct, omit_defaults=True):
    """The current state of a collector's journal."""

    entries: int = 0  # waiting for Kafka
    bytes: int = 0  # of those entries
    stored_bytes: int = 0  # size of its files, which may also hold settled entries
    max_bytes: int = 0
    broken: str = ""  # why it accepts nothing; empty if it does
    damage: JournalDamage | None = None


class BrokenEvent(msgspec.Struct, frozen=True):
    """An event on which a view's query fails; it is set aside so that the query can continue."""

    topic: str
    partition: int
    offset: int
    reason: str  # Spark's message
    at: int  # when it was set aside; milliseconds since the epoch

    @property
    def position(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


class LostEvents(msgspec.Struct, frozen=True):
    """Events that retention deleted before a view's query read them."""

    topic: str
    partition: int
    start: int  # the first lost offset
    stop: int  # the first offset still there
    at: int  # when it was detected; milliseconds since the epoch

    def __len__(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return (
            f"{len(self):,} events of {self.topic}/{self.partition}, {self.start}-{self.stop - 1}"
        )


class RebuildStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rebuild of a view: `analyze` computes it again from the log, beside the served one.

    When it is `done`, the new view has replaced the old one. When it has `failed`, it has not.
    """

    state: Literal["waiting", "replaying", "starting", "ready", "done", "failed"]
    request: str = ""  # the request's id; empty: the pipeline changed
    topic: str = ""  # with the new rows
    done: int = 0  # records read
    total: int = 0  # records to read
    error: str = ""
    since: int | None = None  # only events since then; milliseconds since the epoch
    started_at: int = 0  # milliseconds since the epoch
    ended_at: int = 0  # likewise; 0 while it runs
    left_s: float | None = None  # estimated seconds until all is read


class ViewCounts(msgspec.Struct, omit_defaults=True):
    """Counts of one view in one process: `analyze` fills state and restarts, `serve` rows."""

    state: Literal["starting", "running", "restarting", "failed", "stopped", ""] = ""
    restarts: int = 0
    error: str = ""
    rows: int = 0
    changes: int = 0
    rate: float = 0.0  # result records per second, over the last seconds
    analyze_ms: Latency | None = None  # event collected → result in the log
    serve_ms: Latency | None = None  # result in the log → in the served view
    position: str = ""
    # Input topic → partition → the next offset to read. By analyze: from its checkpoint. By serve:
    # from the newest rows that have a position. Either may be out of date.
    read: dict[str, dict[str, int]] = {}
    read_at: int = 0  # when `read` was true; milliseconds since the epoch
    newest_received_at: int = 0  # by serve: when the newest event in the view was received
    broken: int = 0  # by analyze: events set aside because the query fails on them
    newest_broken: BrokenEvent | None = None
    lost: int = 0  # by analyze: events deleted by retention before the query read them
    losses: list[LostEvents] = []  # the newest of them
    # By analyze: upper bounds of the lag behind the ends of its inputs, in events and seconds.
    behind: int | None = None
    behind_s: float = 0.0
    trend: Trend = ""
    catch_up_s: float | None = None  # estimated seconds until it has caught up
    rebuild: RebuildStatus | None = None  # by analyze: the current or the last one
    watermark: int = 0  # by analyze: windows that ended by then are final; 0: unknown
    warning: str = ""  # by analyze: why rows may be wrong although the query runs
    dropped: int = 0  # by analyze: lower bound of rows that Spark dropped as too late
    shed: int = 0  # by analyze: events that the view left out to keep up
    share: float = 1.0  # by analyze: the share of events that the view processes


class FieldDrift(msgspec.Struct, frozen=True):
    """A field of a stream whose distribution of values has changed."""

    stream: str
    field: str
    at: int  # when the change was detected; milliseconds since the epoch
    score: float  # the population stability index; a drift from 0.2 on
    before: str  # a description
    now: str


class MemberCounts(msgspec.Struct, frozen=True):
    """A member of a group, and how many messages it has not acknowledged."""

    caller: str
    pending: int
    max_pending: int


class GroupCounts(msgspec.Struct, omit_defaults=True):
    """A group on one server."""

    partitions: list[int] = []  # of its source, that the server owns
    member_count: int = 0
    members: list[MemberCounts] = []  # the first hundred
    in_flight: int = 0  # messages that members have not acknowledged
    unhandled: int = 0  # messages that were read and not handled yet, with those in flight
    redelivered: int = 0  # deliveries after the first one of a message, since the server started


class ProcessReport(msgspec.Struct, omit_defaults=True):
    """The counts of one process since it started.

    Of tier `command`: what one command moved from one count to another. Then `accepted` is 0, and
    the count that it moved events from is negative.
    """

    tier: Tier
    instance: str
    at: int  # milliseconds since the epoch
    started_at: int
    streams: dict[str, StreamCounts] = {}
    sources: list[SourceState] = []
    views: dict[str, ViewCounts] = {}
    clients: int = 0
    url: str = ""  # by serve: where clients reach this server
    groups: dict[str, GroupCounts] = {}  # by serve: groups with members here
    journal: JournalState | None = None
    drifts: list[FieldDrift] = []  # by analyze: fields that drift now
    ended: bool = False  # the process ended normally: this is its last report
