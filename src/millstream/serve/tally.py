"""Counts and latencies of one view in this process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime

from millstream.measure import Latencies, Rate
from millstream.store.ring import Change


class Tally:
    """Filled by each batch of changes."""

    def __init__(self) -> None:
        self.live = False  # while a server replays old records their ages mean nothing
        self.changes = Rate()
        self.analyze = Latencies()  # event collected → result in the log
        self.serve = Latencies()  # result in the log → in the served view
        self.whole = Latencies()

    def count(self, changes: Sequence[Change]) -> None:
        self.changes.add(len(changes))
        if not self.live:
            return
        now = time.time() * 1000
        for change in changes:
            self.serve.record(now - change.timestamp)
            received = (change.row or {}).get("_received_at")
            if isinstance(received, str):
                try:
                    at = datetime.fromisoformat(received).timestamp() * 1000
                except ValueError:
                    continue
                self.analyze.record(change.timestamp - at)
                self.whole.record(now - at)
