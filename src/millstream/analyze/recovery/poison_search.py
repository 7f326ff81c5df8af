"""Searches for the events that a query failed on, while other queries run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from millstream.analyze.planning.planned_query import PlannedQuery
from millstream.analyze.records.reader import kafka_options
from millstream.analyze.recovery.checkpoint_notes import (
    CheckpointNotes,
    apply_notes,
    read_notes,
    write_notes,
)
from millstream.analyze.recovery.dead_letters import DeadLetterWriter
from millstream.analyze.recovery.poison import RecordRange, batch_attempt, find_poison
from millstream.analyze.recovery.progress import committed_offsets
from millstream.analyze.spark.catalyst import Catalyst, streamed_topics
from millstream.errors import ViewFailed
from millstream.log.consumer import bounds
from millstream.log.settings import LogSettings
from millstream.pipeline.app import App
from millstream.values.clock import now_ms
from millstream.values.report import BrokenEvent

_log = logging.getLogger(__name__)
_MAX_BROKEN = 1_000  # events of one view; beyond that its query is wrong


class PoisonSearch(threading.Thread):
    """Finds the events on which a query fails, and makes dead letters of them.

    They are first written to the checkpoint's notes and then copied. After a crash in between, the
    next start of the query copies them.
    """

    def __init__(self, query: PlannedQuery, app: App, log: LogSettings, checkpoint: Path) -> None:
        super().__init__(name=f"search {query.view.name}", daemon=True)
        self._query, self._app, self._log = query, app, log
        self._checkpoint = checkpoint
        self._is_cancelled = threading.Event()
        self.notes = CheckpointNotes()  # with the events that were found
        self.found = 0
        self.error: Exception | None = None
        self.start()

    def cancel(self) -> None:
        """End it at the next attempt."""
        self._is_cancelled.set()

    def run(self) -> None:
        try:
            self._search()
        except Exception as error:  # the query is started again, as after any failure
            self.error = error

    def _search(self) -> None:
        notes, name = read_notes(self._checkpoint), self._query.view.name
        if len(notes.broken) >= _MAX_BROKEN:
            raise ViewFailed(
                f"view {name} has set {_MAX_BROKEN:,} events aside already, and sets aside no more",
                remedy="make its query accept them, with try_cast, try_divide or try_element_at",
            )
        found = tuple(self._find(notes))
        self.found = len(found)
        self.notes = msgspec.structs.replace(notes, broken=(*notes.broken, *found))
        if found:
            write_notes(self._checkpoint, self.notes)
            plan = self._query.plan
            DeadLetterWriter(self._app, self._log, plan.name, plan.generation).write(found)
        for event in found:
            _log.error("view %s sets %s aside: %s", name, event.position, event.reason)

    def _find(self, notes: CheckpointNotes) -> Iterator[BrokenEvent]:
        rows = apply_notes(self._query.batch_rows, notes)
        topics = streamed_topics(Catalyst.of(rows).analysed(rows))
        held = {topic: bounds(self._log, topic) for topic in topics}
        attempt = batch_attempt(rows, held, kafka_options(self._log))

        def attempt_unless_cancelled(records: RecordRange) -> str:
            return "" if self._is_cancelled.is_set() else attempt(records)

        for one, reason in find_poison(self._pending(held), attempt_unless_cancelled):
            yield BrokenEvent(one.topic, one.partition, one.start, reason, now_ms())

    def _pending(self, held: dict[str, dict[int, tuple[int, int]]]) -> Iterator[RecordRange]:
        """The records that the query has not committed and that the log still holds."""
        read = committed_offsets(self._checkpoint).offsets
        for topic, partitions in held.items():
            for partition, (oldest, end) in partitions.items():
                start = max(oldest, read.get(topic, {}).get(str(partition), oldest))
                if start < end:
                    yield RecordRange(topic, partition, start, end)
