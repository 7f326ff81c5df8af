"""States stay right while Spark repeats rows, the writer crashes and the log is compacted."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.analyze.row_state.test_row_state import view

from millstream.analyze.row_state.row_state import RowStates
from millstream.analyze.row_state.row_updates import DELETES, CommittedWatermark
from millstream.log.consumer import Partition
from millstream.log.record import Record
from millstream.store.views.table import ViewTable

ENDS_AT = {"a": 1_000, "b": 2_000, "c": 2_000}  # the end of each key's window
KEEP = 5_000


class Log:
    """One partition of a view's topic."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.end = 0

    def append(self, key: bytes, value: bytes | None, ends: int | None = None) -> None:
        headers = () if ends is None else ((DELETES, str(ends).encode()),)
        self.records.append(Record("t", 0, self.end, self.end, key, value, headers))
        self.end += 1

    def compact(self) -> None:
        """Only the newest record of each key stays.

        Older records of a key stay if the newest one is an older row: min.compaction.lag.ms leaves
        the writer time to write the newer row again.
        """
        kept = []
        for number, record in enumerate(self.records):
            later = [r for r in self.records[number + 1 :] if r.key == record.key]
            if not later or version(later[-1]) < version(record):
                kept.append(record)
        self.records = kept


def version(record: Record) -> float:
    return float("inf") if record.value is None else json.loads(record.value)["_revision"]


class Server:
    """A server, and what its clients see: no final row may change unless it says `corrected`."""

    def __init__(self, log: Log) -> None:
        self.table = ViewTable(keyed=True, stateful=True)
        self._log, self._next = log, 0
        self._shown: dict[str, dict[str, Any]] = {}

    def read(self) -> None:
        for record in [r for r in self._log.records if r.offset >= self._next]:
            self._next = record.offset + 1
            change = self.table.apply(*record[1:6])
            if change is None or change.key is None:
                continue
            before, row = self._shown.pop(change.key, None), change.row
            if row is None:
                continue
            self._shown[change.key] = row
            if before is not None:
                assert row["n"] >= before["n"], "a number went backwards"
                if before["_state"] != "provisional":
                    assert row["_state"] == "corrected", (before, row)

    def rows(self) -> dict[str, tuple[Any, Any]]:
        return {key: (row["n"], row["_state"]) for key, row in self.table.rows.items()}


class InMemoryWriter:
    """Like `RowStateWriter`, but records are delivered when the test says so."""

    def __init__(
        self, log: Log, committed: dict[Partition, CommittedWatermark], keep: int | None
    ) -> None:
        self.states = RowStates([view("t", window="w", keep_ms=keep)])
        self.states.committed = dict(committed)
        self._log, self._committed, self._next = log, committed, 0
        self.in_flight: list[tuple[bytes, bytes | None, int | None]] = []

    def read(self) -> None:
        for record in [r for r in self._log.records if r.offset >= self._next]:
            self._next = record.offset + 1
            self.states.apply(record)

    def tick(self, watermark: int, now: int) -> None:
        committed = self.states.to_commit({"t": watermark})
        self._committed |= committed
        self.states.committed |= committed
        for tombstone in self.states.tombstones(now):
            if tombstone.final_value is not None:
                self.in_flight.append((tombstone.row.key, tombstone.final_value, None))
            self.in_flight.append((tombstone.row.key, None, tombstone.offset))
        for restored in self.states.restored():
            self.in_flight.append((restored.row.key, restored.value, None))
        for each in self.states.state_updates({"t": watermark}):
            self.in_flight.append((each.row.key, each.value, None))
        self.states.forget({"t": watermark}, {})

    def deliver(self, count: int) -> None:
        arrived, self.in_flight = self.in_flight[:count], self.in_flight[count:]
        for one in arrived:
            self._log.append(*one)


class States(RuleBasedStateMachine):
    keep: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.log = Log()
        self.committed: dict[Partition, CommittedWatermark] = {}
        self.writer = InMemoryWriter(self.log, self.committed, self.keep)
        self.servers = [Server(self.log)]
        self.revisions: dict[str, int] = {}
        self.watermark = self.now = 0

    @rule(key=st.sampled_from("abc"), events=st.integers(1, 3))
    def spark_counts(self, key: str, events: int) -> None:
        self.revisions[key] = self.revisions.get(key, 0) + events
        self.spark_writes(key, self.revisions[key])

    @precondition(lambda self: self.revisions)
    @rule(data=st.data())
    def spark_crashes_and_repeats(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.revisions)))
        first = data.draw(st.integers(1, self.revisions[key]))
        for revision in range(first, self.revisions[key] + 1):
            self.spark_writes(key, revision)

    def spark_writes(self, key: str, revision: int) -> None:
        end = f"1970-01-01T00:00:{ENDS_AT[key] // 1000:02}.000000Z"
        row = {"n": revision, "w": {"end": end}, "_revision": revision}
        self.log.append(json.dumps([key]).encode(), json.dumps(row).encode())

    @rule(to=st.sampled_from([500, 1_000, 1_500, 2_000, 70_000]))
    def the_watermark_moves(self, to: int) -> None:
        self.watermark = max(self.watermark, to)

    @rule(reads=st.booleans(), delivered=st.integers(0, 4))
    def the_writer_ticks(self, reads: bool, delivered: int) -> None:
        if reads:
            self.writer.read()
        self.writer.tick(self.watermark, self.now)
        self.writer.deliver(delivered)

    @rule(delivered=st.integers(0, 4))
    def the_writer_crashes(self, delivered: int) -> None:
        self.writer.deliver(delivered)
        self.writer = InMemoryWriter(self.log, self.committed, self.keep)
        self.writer.read()  # it writes nothing before it has caught up

    @rule()
    def a_server_reads(self) -> None:
        self.servers[0].read()

    @rule()
    def a_server_starts(self) -> None:
        self.servers.append(Server(self.log))
        self.servers[-1].read()

    @rule()
    def the_log_is_compacted(self) -> None:
        self.log.compact()

    @invariant()
    def no_server_sees_a_final_row_change_without_a_correction(self) -> None:
        for server in self.servers[1:]:
            server.read()

    def teardown(self) -> None:
        for _ in range(20):
            self.now += 1
            self.writer.read()
            self.writer.tick(self.watermark, self.now)
            if not self.writer.in_flight:
                break
            self.writer.deliver(len(self.writer.in_flight))
        assert not self.writer.in_flight, "the writer never stops writing"
        newcomer = Server(self.log)
        self.log.compact()
        late = Server(self.log)
        for server in (*self.servers, newcomer, late):
            server.read()
        seen = [server.rows() for server in (*self.servers, newcomer, late)]
        assert all(rows == seen[0] for rows in seen), seen
        self.check(seen[0])

    def check(self, rows: dict[str, tuple[int, str]]) -> None:
        there = {key for key in self.revisions if not self.is_expired(key)}
        assert rows.keys() == {json.dumps([key]) for key in there}
        for key in there:
            n, state = rows[json.dumps([key])]
            assert n == self.revisions[key]
            assert (state == "provisional") == (ENDS_AT[key] > self.watermark)

    def is_expired(self, key: str) -> bool:
        return self.keep is not None and ENDS_AT[key] + self.keep <= self.now


class ExpiringStates(States):
    keep = KEEP

    @rule(to=st.sampled_from([3_000, 6_000, 7_000, 9_000]))
    def time_passes(self, to: int) -> None:
        self.now = max(self.now, to)


States.TestCase.settings = ExpiringStates.TestCase.settings = settings(
    max_examples=150, stateful_step_count=30
)
TestStates = States.TestCase
TestExpiringStates = ExpiringStates.TestCase
