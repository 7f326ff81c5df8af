"""All that a keeper does between reading and writing: records in, records out, and no Kafka.

What it must know after a crash is among the records that it gives out, in the view's topic of
panes: a state of each key that was shown or entered, and how far the query's topic was read. They
are written in one transaction with what was shown and entered, so that all of it counts or none.
The offsets are a record like the others, and not a consumer group's, because they say of which
topics they are: one that was made anew under the same name begins at 0.
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

_PANE, _ENTRY, _POSITION, _EDITION = b"pane ", b"entry ", b"position", b"edition "
_POSITION_MS = 5_000  # how often the position is written where nothing else is


class OutputTopics(NamedTuple):
    written: str  # by the query: what is read
    view: str
    ledger: str
    panes: str  # what was shown, and how far the query's topic was read
    book: str  # what was entered: the same for all editions of the view


class Write(NamedTuple):
    """A record to write; `partition` None: the first one."""

    topic: str
    partition: int | None
    key: bytes
    value: bytes | None


def edition_record(edition: Edition) -> tuple[str, bytes]:
    """Key and value of the record in the topic of the book that tells of a view computed anew."""
    return f"{_EDITION.decode()}{edition.topic}", msgspec.json.encode(edition)


class _Position(msgspec.Struct):
    generation: str
    offsets: dict[int, int]  # by partition, the next one to read


class OutputProcessor:
    """One view's. Not thread-safe; never blocks."""

    def __init__(
        self,
        topics: OutputTopics,
        generation: str,
        partitions: Iterable[int],
        panes: ShownRows | None,
        book: Ledger | None,
    ) -> None:
        """`generation`: of the topics; that which the query writes to has these `partitions`."""
        self._topics = topics
        self._generation = generation
        self._panes, self._book = panes, book
        self._judged = dict.fromkeys(partitions, 0)  # where what is new begins
        self._next: dict[int, int] = {}
        self._behind = set[int]()  # partitions that have not come to what is new
        self._unread = set(partitions)  # those whose end was not seen yet
        self._is_settled = book is None
        self._entries: list[tuple[LedgerEntry, bytes, int]] = []
        self._written_at = 0

    def recall(self, record: Record) -> None:
        """Take back a record of the topics of panes and book; all of them before any other."""
        key, value = record.key or b"", record.value
        if value is None:
            return
        if self._book is not None and record.topic == self._topics.book:
            if key.startswith(_ENTRY):
                self._book.recall(key.removeprefix(_ENTRY), value)
            elif key == _EDITION + self._topics.view.encode():
                self._book.edition = msgspec.json.decode(value, type=Edition)
        if record.topic != self._topics.panes:
            return
        if key == _POSITION:
            position = msgspec.json.decode(value, type=_Position)
            if position.generation == self._generation:
                self._judged |= position.offsets
        elif key.startswith(_PANE) and self._panes is not None:
            self._panes.recall(key.removeprefix(_PANE), value)

    def start(self) -> dict[int, int]:
        """Where to read from, by partition, once all is recalled.

        Rows that wait to be shown are in the query's topic alone: so that is read as a whole, and
        nothing is written before we have got to where we were.
        """
        if self._panes is None:
            return dict(self._judged)
        self._behind = {partition for partition, judged in self._judged.items() if judged}
        return dict.fromkeys(self._judged, 0)

    def apply(self, record: Record, now: int) -> None:
        """Take in a record of the query's topic, in the order of its partition."""
        self._next[record.partition] = record.offset + 1
        if record.offset >= self._judged.get(record.partition, 0):
            self._behind.discard(record.partition)
        if self._panes is not None:
            self._panes.apply(record)
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

    def outcome(self, now: int) -> list[Write]:
        """What to write now, as one; a failure to do so leaves this work of no use."""
        if self._behind:
            return []
        writes: list[Write] = []
        topics = self._topics
        if self._panes is not None:
            self._panes.tick(now)
            panes, states = self._panes.take()
            for pane in panes:
                for value in pane.values:
                    writes.append(Write(topics.view, pane.partition, pane.key, value))
                self._enter(pane.key, pane.partition, pane.row, now)
            writes += (Write(topics.panes, None, _PANE + key, state) for key, state in states)
        if self._book is not None:
            self._settle(self._book, now)
            self._book.tick(now)
            for entry, key, partition in self._entries:
                writes.append(Write(topics.ledger, partition, key, encode_entry(entry)))
            writes += (
                Write(topics.book, None, _ENTRY + key, state) for key, state in self._book.take()
            )
        self._entries = []
        return self._with_position(writes, now)

    def _settle(self, book: Ledger, now: int) -> None:
        """Once, when all that there was is read: see to what was shown before it was entered."""
        if self._is_settled or self._unread:
            return
        self._is_settled = True
        for key, partition, row, is_over in self._panes.standing() if self._panes else ():
            self._enter(key, partition, row, now)
            if is_over:
                book.end(key, now)
        self._entries += book.settle(now)

    def _enter(self, key: bytes, partition: int, row: bytes | None, now: int) -> None:
        if self._book is None:
            return
        if row is None:
            self._book.end(key, now)
        else:
            for entry in self._book.enter(key, row, now, partition):
                self._entries.append((entry, key, partition))

    def _with_position(self, writes: list[Write], now: int) -> list[Write]:
        is_due = bool(self._next) and now - self._written_at >= _POSITION_MS
        if not writes and not is_due:
            return []
        self._written_at = now
        for partition, offset in self._next.items():
            self._judged[partition] = max(offset, self._judged.get(partition, 0))
        self._next = {}
        position = msgspec.json.encode(_Position(self._generation, self._judged))
        return [*writes, Write(self._topics.panes, None, _POSITION, position)]
