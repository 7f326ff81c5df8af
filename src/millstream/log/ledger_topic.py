"""The entries of a view's ledger: finding, reading and following them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from millstream.log.consumer import BEGINNING, Reader, bounds
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.log.topic_contents import SECONDS, find_app, read_held
from millstream.log.topic_names import ledger_topic
from millstream.values.ledger_entry import LedgerEntry, decode


def app_with(log: LogSettings, view: str) -> str:
    """The name of the pipeline whose view has a ledger; MillstreamError if not exactly one has."""
    remedy = "declare the view with ledger=['amount column']"
    return find_app(log, "ledger", view, "ledger of a view", remedy)


def read_entries(log: LogSettings, app: str, view: str) -> Iterator[LedgerEntry]:
    """All entries up to now, by the time that they were entered; blocks."""
    partitions = map(_entries, read_held(log, ledger_topic(app, view)))
    return heapq.merge(*partitions, key=lambda entry: entry.at)


@contextmanager
def following(
    log: LogSettings, app: str, view: str, deliver: Callable[[LedgerEntry], None]
) -> Iterator[Reader]:
    """Hands over all entries, and those to come, in a thread; in the order of each key."""
    topic = ledger_topic(app, view)
    start = {(topic, partition): BEGINNING for partition in bounds(log, topic, SECONDS)}

    def take(records: list[Record]) -> None:
        for entry in _entries(iter(records)):
            deliver(entry)

    reader = Reader(log, start, take)
    try:
        yield reader
    finally:
        reader.close()
        reader.join()


def _entries(records: Iterator[Record]) -> Iterator[LedgerEntry]:
    for record in records:
        if record.value is not None:
            yield decode(record.value)
