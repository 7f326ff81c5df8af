"""Counts and latencies of one view in this process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime

from millstream.runtime.measure import Latencies, Rate
from millstream.store.views.ring import Change
from millstream.values.hidden_columns import POSITION, RECEIVED, STATE
from millstream.values.row_version import version_of


class Tally:
    """Filled by each batch of changes."""

    def __init__(self) -> None:
        self.live = False  # while a server replays old records their ages mean nothing
        self.changes = Rate()
        self.analyze = Latencies()  # event collected → result in the log
        self.serve = Latencies()  # result in the log → in the served view
        self.whole = Latencies()
        self.newest_received = ""  # of all events that are in; RFC 3339 in UTC, so texts compare
        self.read: dict[str, dict[str, int]] = {}  # source → partition → the offset after it

    def count(self, changes: Sequence[Change]) -> None:
        self.changes.add(len(changes))
        now = time.time() * 1000
        for change in changes:
            row = change.row or {}
            received, position = row.get(RECEIVED), row.get(POSITION)
            if isinstance(received, str) and received > self.newest_received:
                self.newest_received = received
            if position is not None:
                self._note_read(position)
            if self.live and not _is_restated(change):
                self._measure(change.timestamp, received, now)

    def start_over(self) -> None:
        """The view is another from now on, which has read nothing so far."""
        self.newest_received = ""
        self.read.clear()

    def _note_read(self, position: object) -> None:
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
            self.whole.record(now - at)


def _is_restated(change: Change) -> bool:
    """Whether only the row's state is another: what it is made of came long ago."""
    before, row = change.before, change.row
    return (
        before is not None
        and row is not None
        and row.get(STATE) != before.get(STATE)
        and version_of(row)[:-2] == version_of(before)[:-2]
    )
