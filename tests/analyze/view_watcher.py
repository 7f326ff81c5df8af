"""Follows views as a server does, and checks what clients see."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from typing import Any

from confluent_kafka import KafkaException
from tests.analyze.conftest import plain

from millstream.analyze.planning.editions import describe_views, topic_of
from millstream.errors import LogError
from millstream.log.consumer import bounds, read_range
from millstream.log.settings import LogSettings
from millstream.log.topic_names import ledger_topic
from millstream.log.topics import topic_ids
from millstream.store.views.table import ViewTable
from millstream.values.ledger_entry import LedgerEntry, decode
from millstream.values.view_description import ViewDescription

Row = dict[str, Any]
PROVISIONAL, FINAL, CORRECTED = "provisional", "final", "corrected"


class SeenView:
    """One view, in one epoch."""

    def __init__(self, description: ViewDescription, topic: str, epoch: str) -> None:
        self.description, self.topic, self.epoch = description, topic, epoch
        self.table = ViewTable(keyed=True, stateful=True)
        self.sums: dict[str, int] = defaultdict(int)  # of `n`, over all rows that a key ever had
        self.wrong: list[str] = []
        self._next: dict[int, int] = {}

    @property
    def rows(self) -> dict[str, Row]:
        return dict(self.table.rows)

    def read(self, log: LogSettings) -> None:
        """Read the new records, and check them."""
        shown = {key: dict(row) for key, row in self.table.rows.items()}
        for partition, (first, end) in bounds(log, self.topic).items():
            start = self._next.get(partition, first)
            for each in read_range(log, self.topic, partition, start, end):
                self._next[partition] = each.offset + 1
                change = self.table.apply(
                    partition, each.offset, each.timestamp, each.key, each.value
                )
                if change is None or change.key is None or change.row is None:
                    continue
                self._check(change.key, shown.get(change.key), change.row)
                shown[change.key] = dict(change.row)
                self.sums[change.key] += int(str(change.row["n"]))
            self._next[partition] = end

    def replace(self, old: SeenView) -> None:
        """Check all rows, as they replace those that clients had."""
        for key, before in old.rows.items():
            if key not in self.rows:
                self.wrong.append(f"{self.topic} lacks {before}")
            elif before["_state"] != PROVISIONAL:
                now = self.rows[key]
                fitting = {CORRECTED, FINAL} if plain(before) == plain(now) else {CORRECTED}
                if now["_state"] not in fitting:
                    self.wrong.append(f"{self.topic}: {before} became {now}")

    def _check(self, key: str, before: Row | None, now: Row) -> None:
        if before is not None and before["_state"] != PROVISIONAL and now["_state"] != CORRECTED:
            self.wrong.append(f"{self.topic}: {before} became {now}")


class Watcher(threading.Thread):
    """Reads the views of an app repeatedly, until it is closed."""

    def __init__(self, log: LogSettings, app: str) -> None:
        super().__init__(name="watcher", daemon=True)
        self._log, self._app = log, app
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self.seen: dict[str, SeenView] = {}
        self.wrong: list[str] = []  # changes that no client may see
        self.swaps = 0
        self.start()

    def run(self) -> None:
        try:
            while not self._closing.wait(0.2):
                # If Kafka does not answer, try again.
                with contextlib.suppress(LogError, KafkaException):
                    self.look()
        except BaseException as failure:
            self._failure = failure

    def close(self) -> None:
        self._closing.set()
        self.join(30)
        self.check()

    def check(self) -> None:
        """Raise the error that ended the thread, if any: what it has seen is old then."""
        if self._failure is not None:
            raise self._failure

    def look(self) -> None:
        with self._lock:
            described = describe_views(self._app, self._log)
            topics = {name: topic_of(self._app, each) for name, each in described.items()}
            ids = topic_ids(self._log, topics.values())
            for name, topic in topics.items():
                if topic in ids:
                    self._look_at(described[name], topic, ids[topic])

    def _look_at(self, description: ViewDescription, topic: str, epoch: str) -> None:
        before = self.seen.get(description.name)
        seen = before
        if seen is None or seen.epoch != epoch:
            seen = SeenView(description, topic, epoch)
        try:
            seen.read(self._log)
        except LogError:  # it is being deleted: the next description names another topic
            return
        if before is not None and seen is not before:
            self.swaps += 1
            if before.description.accumulation != "discard":
                seen.replace(before)
        self.seen[description.name] = seen
        self.wrong += seen.wrong
        seen.wrong = []

    def entries(self, view: str) -> list[LedgerEntry]:
        """The view's ledger so far, in the order of each key."""
        topic = ledger_topic(self._app, view)
        return [
            decode(record.value or b"")
            for partition, (first, end) in bounds(self._log, topic).items()
            for record in read_range(self._log, topic, partition, first, end)
        ]
