"""Counts and latencies of one view in this process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from millstream.runtime.measure import Latencies, Rate
from millstream.store.views.ring import ViewChange
from millstream.values.hidden_columns import POSITION, RECEIVED, STATE
from millstream.values.row_version import version_of


class ViewMetrics:
    """Counts and latencies, updated with each batch of changes."""

    def __init__(self) -> None:
        self.is_current = False  # latencies are measured only after old records are replayed
        self.changes = Rate()
        self.skipped: Counter[str] = Counter()  # changes left out for a client, by reason
        self.analyze = Latencies()  # event collected → result in the log
        self.serve = Latencies()  # result in the log → in the served view
        self.end_to_end = Latencies()
        self.newest_received = ""  # of all events in the view; RFC 3339 in UTC sorts as text
        self.read: dict[str, dict[str, int]] = {}  # source → partition → next offset

    def count(self, changes: Sequence[ViewChange]) -> None:
        self.changes.add(len(changes))
        now = time.time() * 1000
        for change in changes:
            row = change.row or {}
            received, position = row.get(RECEIVED), row.get(POSITION)
            if isinstance(received, str) and received > self.newest_received:
                self.newest_received = received
            if position is not None:
                self._count_read(position)
            if self.is_current and not _changes_only_state(change):
                self._measure(change.timestamp, received, now)

    def reset(self) -> None:
        """Forget what the view has read: it is read again from the beginning."""
        self.newest_received = ""
        self.read.clear()

    def _count_read(self, position: object) -> None:
        match position:
            case {"source": str(source), "partition": int(partition), "offset": int(offset)}:
                held = self.read.setdefault(source, {})
                held[str(partition)] = max(offset + 1, held.get(str(partition), 0))

    def _measure(self, logged: int, received: object, now: float) -> None:
        self.serve.record(now - logged)
        if isinstance(received, str):
            try:
                at = datetime.fromisoformat(received).timestamp() * 1000
            except ValueError:
                return
            self.analyze.record(logged - at)
            self.end_to_end.record(now - at)


def _changes_only_state(change: ViewChange) -> bool:
    """Whether only the row's state changed: its events arrived long ago."""
    before, row = change.before, change.row
    return (
        before is not None
        and row is not None
        and row.get(STATE) != before.get(STATE)
        and version_of(row)[:-2] == version_of(before)[:-2]
    )
