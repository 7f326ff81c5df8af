"""A view's query and its output writer without Kafka: topics are lists, and both can crash."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from millstream.analyze.triggers.ledger import Edition, Ledger, LedgerSpec
from millstream.analyze.triggers.processor import (
    OutputProcessor,
    OutputTopics,
    Write,
    edition_record,
)
from millstream.analyze.triggers.shown_rows import OutputSpec, ShownRows
from millstream.log.record import Record
from millstream.pipeline.trigger import Accumulation, parse_trigger
from millstream.values.ledger_entry import Amounts, LedgerEntry, decode, sums
from millstream.values.view_description import ViewColumn

TOPICS = OutputTopics("changes", "view", "ledger", "state", "state")
COLUMNS = (ViewColumn("k", "string"), ViewColumn("n", "bigint"), ViewColumn("total", "double"))
FORGET_MS = 10**9


WINDOW = {"start": "1970-01-01T00:00:00.000000Z", "end": "1970-01-01T00:00:10.000000Z"}


@dataclass
class InMemoryView:
    """`row` writes a row of the query, `run` processes rows, `crash` forgets what is in memory."""

    trigger: str = "every change"
    accumulation: Accumulation = "accumulate"
    ledger: bool = True
    windowed: bool = True
    generation: str = "g"
    topic_id: str = "first"
    now: int = 0
    changes: list[Record] = field(default_factory=list)
    written: dict[str, list[Write]] = field(default_factory=dict)
    read: int = 0

    def __post_init__(self) -> None:
        self.written = {topic: [] for topic in TOPICS}
        self.crash()

    def row(self, key: str, revision: int, total: float = 0.0, **more: Any) -> None:
        """The query writes a row."""
        value = {"k": key, "n": revision, "total": total, "_revision": revision, **more}
        if self.windowed:
            value = {"window": WINDOW, **value}
        self.record(key, json.dumps(value, separators=(",", ":")).encode())

    def state(self, key: str = "a", word: str = "final", revision: int = 0) -> None:
        """The newest row, or that of the revision, is written with its state."""
        name = json.dumps([key]).encode()
        found = [each.value for each in self.changes if each.key == name and each.value]
        rows = [row for row in map(json.loads, found) if revision in (0, row["_revision"])]
        newest = max(rows, key=lambda row: int(row["_revision"]))
        self.record(key, json.dumps({**newest, "_state": word}, separators=(",", ":")).encode())

    def record(self, key: str, value: bytes | None) -> None:
        name = json.dumps([key]).encode()
        at = len(self.changes)
        self.changes.append(Record(TOPICS.written, 0, at, self.now, name, value, ()))

    def crash(self) -> None:
        """The writer starts again, with nothing but what is written."""
        spec = OutputSpec(
            parse_trigger(self.trigger),
            self.accumulation,
            ("n", "total"),
            "window" if self.windowed else None,
            COLUMNS,
        )
        ledger = LedgerSpec("v", self.generation, ("n", "total"))
        self.processor = OutputProcessor(
            TOPICS,
            self.topic_id,
            [0],
            ShownRows(spec, self.topic_id, FORGET_MS),
            Ledger(ledger, FORGET_MS) if self.ledger else None,
        )
        newest = {write.key: write for write in self.written[TOPICS.state]}
        for write in newest.values():
            self.processor.restore(Record(TOPICS.state, 0, 0, 0, write.key, write.value, ()))
        self.read = self.processor.start()[0]

    def run(self, *, at_most: int = 10**9, lost: bool = False) -> None:
        """Read on and write the outcome; `lost`: the writer crashes before it is committed."""
        until = min(len(self.changes), self.read + at_most)
        for record in self.changes[self.read : until]:
            self.processor.apply(record, self.now)
        self.read = until
        if until == len(self.changes):
            self.processor.reached_end(0)
        writes = self.processor.take_writes(self.now)
        if lost:
            self.crash()
            return
        for write in writes:
            self.written[write.topic].append(write)

    def restart_query(self, generation: str) -> None:
        """The query starts again, with an empty topic; the ledger stays."""
        self.generation, self.topic_id = generation, f"{self.topic_id}+"
        self.changes = []
        self.written[TOPICS.view] = []
        self.crash()

    def rebuild(self, whole_from: int = 0) -> None:
        """The view is rebuilt beside the one that is served: its rows are entered later."""
        self.restart_query(f"{self.generation}.1")
        self.ledger = False
        self.crash()
        self._edition = edition_record(Edition(TOPICS.view, whole_from))

    def take_over(self) -> None:
        """The rebuilt view is served from now on."""
        key, value = self._edition
        self.written[TOPICS.ledger_state].append(
            Write(TOPICS.ledger_state, None, key.encode(), value)
        )
        self.ledger = True
        self.crash()
        self.run()

    def shown(self, *columns: str) -> list[Any]:
        """These columns of each row in the view's topic; None for a tombstone."""
        found = [None if each.value is None else exact(each.value) for each in self.shown_writes]
        return [
            row
            if row is None
            else row.get(columns[0])
            if len(columns) == 1
            else picked(row, columns)
            for row in found
        ]

    @property
    def shown_writes(self) -> list[Write]:
        return self.written[TOPICS.view]

    @property
    def entries(self) -> list[LedgerEntry]:
        return [decode(each.value or b"") for each in self.written[TOPICS.ledger]]

    def balance(self) -> dict[str, Amounts]:
        """The sums of the ledger, by key."""
        return {str(key[0]): amounts for key, amounts in sums(self.entries).values()}


def picked(row: dict[str, Any], columns: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in columns)


def exact(value: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(value, parse_float=Decimal)
    return found
