"""Reads the entries of a view's ledger, up to now or continuously."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from millstream.log.consumer import BEGINNING, Reader, bounds
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.log.topic_contents import TIMEOUT, find_app, read_topic
from millstream.log.topic_names import ledger_topic
from millstream.values.ledger_entry import LedgerEntry, decode


def find_ledger_app(log: LogSettings, view: str) -> str:
    """The app whose view has a ledger; MillstreamError unless exactly one has."""
    remedy = "declare the view with ledger=['amount column']"
    return find_app(log, "ledger", view, "ledger of a view", remedy)


def read_entries(log: LogSettings, app: str, view: str) -> Iterator[LedgerEntry]:
    """All entries up to now, in the order of time. Blocks."""
    partitions = map(_entries, read_topic(log, ledger_topic(app, view)))
    return heapq.merge(*partitions, key=lambda entry: entry.at)


@contextmanager
def following(
    log: LogSettings, app: str, view: str, deliver: Callable[[LedgerEntry], None]
) -> Iterator[Reader]:
    """Calls `deliver` in a thread with all entries, old and new; in order per key."""
    topic = ledger_topic(app, view)
    start = {(topic, partition): BEGINNING for partition in bounds(log, topic, TIMEOUT)}

    def decode_and_deliver(records: list[Record]) -> None:
        for entry in _entries(iter(records)):
            deliver(entry)

    reader = Reader(log, start, decode_and_deliver)
    try:
        yield reader
    finally:
        reader.close()
        reader.join()


def _entries(records: Iterator[Record]) -> Iterator[LedgerEntry]:
    for record in records:
        if record.value is not None:
            yield decode(record.value)
