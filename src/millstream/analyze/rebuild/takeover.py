"""Prepares a rebuilt view to replace the one that is served.

Clients saw final rows. The same row of the new edition must be final before clients see it. If it
differs, it must be marked as corrected. A row that lacks events, because the new edition has not
read them, must not correct a ledger: `whole_from` says which rows those are.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from confluent_kafka import Producer

from millstream.analyze.history.history import LogRange
from millstream.analyze.plan import ViewPlan
from millstream.analyze.row_state.row_updates import REBUILT, with_state
from millstream.analyze.verify.comparison import comparison_by_type
from millstream.errors import LogError
from millstream.log.connection import client_config
from millstream.log.consumer import bounds, read_range
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.store.views.ring import Row
from millstream.store.views.table import ViewTable
from millstream.values.clock import now_ms
from millstream.values.row_version import CORRECTED, FINAL, PROVISIONAL, version_of

_SECONDS = 30.0


class Takeover(threading.Thread):
    """Marks the rows of a new edition that correct rows of the old one, in the background."""

    def __init__(self, log: LogSettings, plan: ViewPlan, old: str) -> None:
        """`old`: the topic that the query of the served edition wrote to."""
        super().__init__(name=f"takeover {plan.name}", daemon=True)
        self._log, self._plan, self._old = log, plan, old
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            mark_corrected(self._log, self._plan, self._old)
        except Exception as error:  # the caller tries again, whatever it is
            self.error = error


class _Newest(NamedTuple):
    row: Row
    record: Record

    @property
    def stage(self) -> int:
        return int(version_of(self.row)[-2])


def mark_corrected(log: LogSettings, plan: ViewPlan, old: str) -> int:
    """Write final rows again as corrected, and return how many. Blocks while it reads both topics.

    These are the rows that were final in `old` with other values, or were corrected there.
    """
    before, compared = _newest_rows(log, old), comparison_by_type(plan.columns)
    marked = 0
    producer = Producer(client_config(log, enable_idempotence=True))
    for key, now in _newest_rows(log, plan.query_topic).items():
        was = before.get(key)
        if was is None or was.stage == PROVISIONAL or now.stage != FINAL:
            continue
        if was.stage == CORRECTED or compared.differing(was.row, now.row):
            record = now.record
            value = with_state(record.value or b"", CORRECTED, int(version_of(now.row)[-1]))
            headers: list[tuple[str, str | bytes | None]] = [(REBUILT, b"1")]
            producer.produce(plan.query_topic, value, record.key, record.partition, headers=headers)
            producer.poll(0)
            marked += 1
    if producer.flush(_SECONDS):
        raise LogError(f"cannot write to topic {plan.query_topic}: no answer in {_SECONDS:g} s")
    return marked


def whole_from(log: LogSettings, past: LogRange, since: int | None, ahead_ms: int) -> int:
    """The time from which on no event is missing, in milliseconds; 0: none is missing at all.

    Missing events were received before the first one that was read, and an event's time is later
    than its receipt by at most `ahead_ms`. Blocks.
    """
    if past.is_whole:
        return 0
    moments = [since or 0]
    for topic, span in past.offsets.items():
        for partition, (start, end) in span.items():
            if start:
                first = next(iter(read_range(log, topic, partition, start, end)), None)
                moments.append(first.timestamp if first else now_ms())
    return max(moments) + ahead_ms


def _newest_rows(log: LogSettings, topic: str) -> dict[str, _Newest]:
    """The newest row of each key, as a server has it, and its record."""
    table = ViewTable(keyed=True, stateful=True, numbers="decimal", recent=1, newest=1)
    found: dict[str, _Newest] = {}
    for partition, (low, high) in bounds(log, topic).items():
        for record in read_range(log, topic, partition, low, high):
            change = table.apply(*record[1:6])
            if change is None or change.key is None:
                continue
            if change.row is None:
                found.pop(change.key, None)
            else:
                found[change.key] = _Newest(change.row, record)
    return found
