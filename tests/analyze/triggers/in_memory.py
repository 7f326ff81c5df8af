"""A view's query and its keeper without Kafka: topics are lists, and both may die at any moment."""

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

TOPICS = OutputTopics("changes", "view", "ledger", "panes", "panes")
COLUMNS = (ViewColumn("k", "string"), ViewColumn("n", "bigint"), ViewColumn("total", "double"))
FORGET_MS = 10**9


WINDOW = {"start": "1970-01-01T00:00:00.000000Z", "end": "1970-01-01T00:00:10.000000Z"}


@dataclass
class InMemoryView:
    """Writes the query's rows by `row`, and keeps by `keep`, of which `crash` forgets all."""

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
        """The query gives a row."""
        value = {"k": key, "n": revision, "total": total, "_revision": revision, **more}
        if self.windowed:
            value = {"window": WINDOW, **value}
        self.record(key, json.dumps(value, separators=(",", ":")).encode())

    def state(self, key: str = "a", word: str = "final", revision: int = 0) -> None:
        """The row is said to be final: the newest one, or that of the revision."""
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
        """The keeper begins anew, with nothing but what is written."""
        showing = OutputSpec(
            parse_trigger(self.trigger),
            self.accumulation,
            ("n", "total"),
            "window" if self.windowed else None,
            COLUMNS,
        )
        books = LedgerSpec("v", self.generation, ("n", "total"))
        self.work = OutputProcessor(
            TOPICS,
            self.topic_id,
            [0],
            ShownRows(showing, self.topic_id, FORGET_MS),
            Ledger(books, FORGET_MS) if self.ledger else None,
        )
        newest = {write.key: write for write in self.written[TOPICS.panes]}
        for write in newest.values():
            self.work.recall(Record(TOPICS.panes, 0, 0, 0, write.key, write.value, ()))
        self.read = self.work.start()[0]

    def keep(self, *, at_most: int = 10**9, lost: bool = False) -> None:
        """Read on, and write what comes of it; `lost`: the keeper dies before it is committed."""
        until = min(len(self.changes), self.read + at_most)
        for record in self.changes[self.read : until]:
            self.work.apply(record, self.now)
        self.read = until
        if until == len(self.changes):
            self.work.reached_end(0)
        writes = self.work.outcome(self.now)
        if lost:
            self.crash()
            return
        for write in writes:
            self.written[write.topic].append(write)

    def anew(self, generation: str) -> None:
        """The query begins anew, into an empty topic; the ledger stays."""
        self.generation, self.topic_id = generation, f"{self.topic_id}+"
        self.changes = []
        self.written[TOPICS.view] = []
        self.crash()

    def rebuild(self, whole_from: int = 0) -> None:
        """The query is computed anew, beside what is served: what it shows is entered later."""
        self.anew(f"{self.generation}.1")
        self.ledger = False
        self.crash()
        self._edition = edition_record(Edition(TOPICS.view, whole_from))

    def take_over(self) -> None:
        """What was computed anew is served from now on."""
        key, value = self._edition
        self.written[TOPICS.book].append(Write(TOPICS.book, None, key.encode(), value))
        self.ledger = True
        self.crash()
        self.keep()

    def shown(self, *columns: str) -> list[Any]:
        """What was written into the view's topic: of each row these columns, None for its end."""
        found = [None if each.value is None else exact(each.value) for each in self.view]
        return [
            row
            if row is None
            else row.get(columns[0])
            if len(columns) == 1
            else picked(row, columns)
            for row in found
        ]

    @property
    def view(self) -> list[Write]:
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
