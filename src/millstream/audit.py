"""What the tiers tell about themselves through the log: counts, and what each view is.

A `Report` goes to the audit topic every second, from every process. A command that moves events
writes one, too. A `ViewDescription` goes to the compacted topic of views whenever `analyze` starts
that view.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Tier = Literal["collect", "analyze", "serve", "command"]


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

    accepted = logged + rejected + failed + shed + duplicates + pending, at every moment.
    """

    accepted: int = 0  # handed in, whatever became of it
    logged: int = 0  # acknowledged by Kafka's in-sync replicas
    rejected: int = 0  # invalid, and in the rejected topic
    failed: int = 0  # refused by Kafka for good, and in the failed store
    shed: int = 0  # dropped under pressure, as the stream allows
    duplicates: int = 0  # the same as one before, by its id
    pending: int = 0  # in the journal, or on the way to Kafka
    recovered: int = 0  # of the accepted, those that an earlier start had left in the journal
    rate: float = 0.0  # logged a second, over the last seconds
    latency_ms: Latency | None = None  # received to acknowledged
    journaled_ms: Latency | None = None  # received to on disk
    sent_ms: Latency | None = None  # received to handed to Kafka

    def missing(self) -> int:
        """How many of the accepted events are accounted for nowhere: 0, or something is wrong."""
        return self.accepted - (
            self.logged + self.rejected + self.failed + self.shed + self.duplicates + self.pending
        )


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
    rate: float = 0.0  # messages a second, over the last seconds
    behind: int | None = None  # how much the peer still has for us, where it says so
    behind_unit: str = ""  # of what: messages, bytes, files


class JournalState(msgspec.Struct, omit_defaults=True):
    """A collector's journal now."""

    entries: int = 0  # that wait for Kafka
    bytes: int = 0  # of those
    stored_bytes: int = 0  # what its files take: settled entries may share one with others
    max_bytes: int = 0
    broken: str = ""  # why it takes nothing; empty while it does


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


class Report(msgspec.Struct, omit_defaults=True):
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
    ended: bool = False  # it ended in order: nothing is counted after this


class Column(msgspec.Struct, frozen=True):
    name: str
    type: str  # Spark DDL, as in `struct<start:timestamp,end:timestamp>`


class ViewDescription(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that a server or client needs to know about a view; the key of its record is the name."""

    name: str
    inputs: list[str]
    key: list[str] | None
    columns: list[Column]  # the user's columns, without lineage
    mode: Literal["real_time", "micro_batch"]
    reason: str  # why that mode
    guarantee: str
    lineage: Literal["revision", "position", "batch", "none"]
    generation: str  # the fingerprint of its plan
    description: str = ""
    keep_ms: int | None = None
    window: str | None = None  # the column that is a time window, if one is
