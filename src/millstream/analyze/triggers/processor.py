"""From the query's records to the records of shown rows and ledger entries. Without Kafka.

Some records go into the view's state topic, for the next start: the state of each key that was
shown or entered, and the offset up to which the query's topic was read. All records are written in
one transaction, so that all count or none. The offsets are a record, not those of a consumer group,
because they name the topics by id: a topic that was created again starts at 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from millstream.analyze.triggers.ledger import Edition, Ledger
from millstream.analyze.triggers.shown_rows import ShownRows
from millstream.log.record import Record
from millstream.values.ledger_entry import LedgerEntry
from millstream.values.ledger_entry import encode as encode_entry

# Keys of stored records: they cannot change.
_SHOWN, _ENTRY, _POSITION, _EDITION = b"pane ", b"entry ", b"position", b"edition "
_POSITION_MS = 5_000  # how often the position is written when nothing else is


class OutputTopics(NamedTuple):
    """The topics of a view's output."""

    written: str  # by the query: the input
    view: str
    ledger: str
    state: str  # state of the shown rows, and the position in the query's topic
    ledger_state: str  # state of the ledger: the same topic for all editions of the view


class Write(NamedTuple):
    """A record to write; `partition` None: the first one."""

    topic: str
    partition: int | None
    key: bytes
    value: bytes | None


def edition_record(edition: Edition) -> tuple[str, bytes]:
    """Key and value of the record in the ledger's state topic that announces a rebuilt view."""
    return f"{_EDITION.decode()}{edition.topic}", msgspec.json.encode(edition)


class _Position(msgspec.Struct):
    generation: str
    offsets: dict[int, int]  # by partition, the next one to read


class OutputProcessor:
    """Processes one view's records. Not thread-safe; never blocks."""

    def __init__(
        self,
        topics: OutputTopics,
        generation: str,
        partitions: Iterable[int],
        shown: ShownRows | None,
        ledger: Ledger | None,
    ) -> None:
        """`generation` is that of the topics; `partitions` are those of the query's topic."""
        self._topics = topics
        self._generation = generation
        self._shown, self._ledger = shown, ledger
        self._done = dict.fromkeys(partitions, 0)  # partition → first offset not processed yet
        self._next: dict[int, int] = {}
        self._behind = set[int]()  # partitions still read before that offset
        self._unread = set(partitions)  # partitions whose end was not seen yet
        self._has_entered_all = ledger is None
        self._entries: list[tuple[LedgerEntry, bytes, int]] = []
        self._written_at = 0

    def restore(self, record: Record) -> None:
        """Restore a record of the state topics; all of them before any other."""
        key, value = record.key or b"", record.value
        if value is None:
            return
        if self._ledger is not None and record.topic == self._topics.ledger_state:
            if key.startswith(_ENTRY):
                self._ledger.restore(key.removeprefix(_ENTRY), value)
            elif key == _EDITION + self._topics.view.encode():
                self._ledger.edition = msgspec.json.decode(value, type=Edition)
        if record.topic != self._topics.state:
            return
        if key == _POSITION:
            position = msgspec.json.decode(value, type=_Position)
            if position.generation == self._generation:
                self._done |= position.offsets
        elif key.startswith(_SHOWN) and self._shown is not None:
            self._shown.restore(key.removeprefix(_SHOWN), value)

    def start(self) -> dict[int, int]:
        """Where to read from, by partition, after `restore`.

        Rows that wait to be shown are only in the query's topic. So that is read from its start,
        and nothing is written before the reader is back where it was.
        """
        if self._shown is None:
            return dict(self._done)
        self._behind = {partition for partition, done in self._done.items() if done}
        return dict.fromkeys(self._done, 0)

    def apply(self, record: Record, now: int) -> None:
        """Process a record of the query's topic, in the order of its partition."""
        self._next[record.partition] = record.offset + 1
        if record.offset >= self._done.get(record.partition, 0):
            self._behind.discard(record.partition)
        if self._shown is not None:
            self._shown.apply(record)
        elif record.key is not None:
            self._enter(record.key, record.partition, record.value, now)

    def reached_end(self, partition: int) -> None:
        """There is nothing more to read for now."""
        self._behind.discard(partition)
        self._unread.discard(partition)

    @property
    def has_read_all(self) -> bool:
        """Whether the end of each partition was seen."""
        return not self._unread

    def take_writes(self, now: int) -> list[Write]:
        """The records to write now, in one transaction. If that fails, start a new processor."""
        if self._behind:
            return []
        writes: list[Write] = []
        topics = self._topics
        if self._shown is not None:
            self._shown.tick(now)
            outputs, states = self._shown.take_outputs()
            for output in outputs:
                for value in output.values:
                    writes.append(Write(topics.view, output.partition, output.key, value))
                self._enter(output.key, output.partition, output.row, now)
            writes += (Write(topics.state, None, _SHOWN + key, state) for key, state in states)
        if self._ledger is not None:
            self._enter_shown_before(self._ledger, now)
            self._ledger.tick(now)
            for entry, key, partition in self._entries:
                writes.append(Write(topics.ledger, partition, key, encode_entry(entry)))
            writes += (
                Write(topics.ledger_state, None, _ENTRY + key, state)
                for key, state in self._ledger.changed_states()
            )
        self._entries = []
        return self._with_position(writes, now)

    def _enter_shown_before(self, ledger: Ledger, now: int) -> None:
        """Enter rows that were shown before they could be entered; once, when all is read."""
        if self._has_entered_all or self._unread:
            return
        self._has_entered_all = True
        for each in self._shown.final_rows() if self._shown else ():
            self._enter(each.key, each.partition, each.row, now)
            if each.is_deleted:
                ledger.delete(each.key, now)
        self._entries += ledger.retract_missing(now)

    def _enter(self, key: bytes, partition: int, row: bytes | None, now: int) -> None:
        if self._ledger is None:
            return
        if row is None:
            self._ledger.delete(key, now)
        else:
            for entry in self._ledger.apply(key, row, now, partition):
                self._entries.append((entry, key, partition))

    def _with_position(self, writes: list[Write], now: int) -> list[Write]:
        is_due = bool(self._next) and now - self._written_at >= _POSITION_MS
        if not writes and not is_due:
            return []
        self._written_at = now
        for partition, offset in self._next.items():
            self._done[partition] = max(offset, self._done.get(partition, 0))
        self._next = {}
        position = msgspec.json.encode(_Position(self._generation, self._done))
        return [*writes, Write(self._topics.state, None, _POSITION, position)]
