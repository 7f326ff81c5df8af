"""The entries of a view's ledger: finding, reading and following them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from millstream.errors import MillstreamError
from millstream.ledger import Entry, decode
from millstream.log.consumer import BEGINNING, Reader, bounds, read_range
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.log.topics import known_topics, ledger_topic
from millstream.names import suggest

_SECONDS = 30.0


def app_with(log: LogSettings, view: str) -> str:
    """The name of the pipeline whose view has a ledger; MillstreamError if not exactly one has."""
    pairs = [name.split(".ledger.") for name in known_topics(log) if name.count(".ledger.") == 1]
    found = sorted(app for app, name in pairs if name == view)
    if len(found) == 1:
        return found[0]
    if found:
        raise MillstreamError(
            f"several pipelines have a ledger of a view {view!r}: {', '.join(found)}",
            remedy="say which one: --app NAME",
        )
    known = sorted({name for _, name in pairs})
    raise MillstreamError(
        f"the log has no ledger of a view {view!r}",
        remedy=suggest(view, known) if known else "declare the view with ledger=['amount column']",
    )


def read_entries(log: LogSettings, app: str, view: str) -> Iterator[Entry]:
    """All entries up to now, by the time that they were entered; blocks."""
    topic = ledger_topic(app, view)
    partitions = [
        _entries(read_range(log, topic, partition, first, end, patience=_SECONDS))
        for partition, (first, end) in bounds(log, topic, _SECONDS).items()
        if first < end
    ]
    return heapq.merge(*partitions, key=lambda entry: entry.at)


@contextmanager
def following(
    log: LogSettings, app: str, view: str, deliver: Callable[[Entry], None]
) -> Iterator[Reader]:
    """Hands over all entries, and those to come, in a thread; in the order of each key."""
    topic = ledger_topic(app, view)
    start = {(topic, partition): BEGINNING for partition in bounds(log, topic, _SECONDS)}

    def take(records: list[Record]) -> None:
        for entry in _entries(iter(records)):
            deliver(entry)

    reader = Reader(log, start, take)
    try:
        yield reader
    finally:
        reader.close()
        reader.join()


def _entries(records: Iterator[Record]) -> Iterator[Entry]:
    for record in records:
        if record.value is not None:
            yield decode(record.value)
