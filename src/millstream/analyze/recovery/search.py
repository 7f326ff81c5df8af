"""The search for what a query failed on, beside the queries that go on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from millstream.analyze.planning.planner import Query, kafka_options
from millstream.analyze.recovery.aside import Aside
from millstream.analyze.recovery.notes import Notes, as_noted, read_notes, write_notes
from millstream.analyze.recovery.poison import Pending, Try, find_broken, topics_of, trying
from millstream.analyze.recovery.progress import read_so_far
from millstream.errors import ViewFailed
from millstream.log.consumer import bounds
from millstream.log.settings import LogSettings
from millstream.pipeline.app import App
from millstream.values.clock import now_ms
from millstream.values.report import BrokenEvent

_log = logging.getLogger(__name__)
_TOO_MANY = 1_000  # events set aside in one view, beyond which its query is to blame


class Search(threading.Thread):
    """Finds the events that break a query and sets them aside, durably.

    They are noted beside the checkpoint first, and then copied: after a crash in between, the next
    start of the query copies them.
    """

    def __init__(self, query: Query, app: App, log: LogSettings, checkpoint: Path) -> None:
        super().__init__(name=f"search {query.view.name}", daemon=True)
        self._query, self._app, self._log = query, app, log
        self._checkpoint = checkpoint
        self._is_over = threading.Event()
        self.notes = Notes()  # with what was found
        self.found = 0
        self.error: Exception | None = None
        self.start()

    def give_up(self) -> None:
        """End it at the next try."""
        self._is_over.set()

    def run(self) -> None:
        try:
            self._search()
        except Exception as error:  # the query is started again, as after any failure
            self.error = error

    def _search(self) -> None:
        notes, name = read_notes(self._checkpoint), self._query.view.name
        if len(notes.broken) >= _TOO_MANY:
            raise ViewFailed(
                f"view {name} has set {_TOO_MANY:,} events aside already, and sets aside no more",
                remedy="make its query take them, by try_cast, try_divide, try_element_at, say",
            )
        found = tuple(self._find(notes))
        self.found = len(found)
        self.notes = msgspec.structs.replace(notes, broken=(*notes.broken, *found))
        if found:
            write_notes(self._checkpoint, self.notes)
            plan = self._query.plan
            Aside(self._app, self._log, plan.name, plan.generation).put(found)
        for event in found:
            _log.error("view %s sets %s aside: %s", name, event.position, event.reason)

    def _find(self, notes: Notes) -> Iterator[BrokenEvent]:
        rows = as_noted(self._query.whole, notes)
        held = {topic: bounds(self._log, topic) for topic in topics_of(rows)}
        attempt = trying(rows, held, kafka_options(self._log))
        reasons: dict[Pending, str] = {}
        for one in find_broken(self._pending(held), self._counting(attempt, reasons)):
            now = now_ms()
            yield BrokenEvent(one.topic, one.partition, one.start, reasons[one], now)

    def _counting(self, attempt: Try, reasons: dict[Pending, str]) -> Try:
        def fails(pending: Pending) -> str:
            if self._is_over.is_set():
                return ""
            reasons[pending] = attempt(pending)
            return reasons[pending]

        return fails

    def _pending(self, held: dict[str, dict[int, tuple[int, int]]]) -> Iterator[Pending]:
        """What the query has not committed, as far as it is still there."""
        read = read_so_far(self._checkpoint).offsets
        for topic, partitions in held.items():
            for partition, (oldest, end) in partitions.items():
                start = max(oldest, read.get(topic, {}).get(str(partition), oldest))
                if start < end:
                    yield Pending(topic, partition, start, end)
