"""After a crash: which events of the journal's pending entries does the log have already?"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

from millstream.collect.arrival import glimpse
from millstream.collect.intake.damage import explain, without
from millstream.collect.intake.intake import Intake
from millstream.collect.intake.lane import Lane
from millstream.collect.journal import Journal
from millstream.log.record import Record
from millstream.log.search import Decision, Search
from millstream.log.settings import LogSettings
from millstream.values import event

_READ_BYTES = 16 << 20
_TURN_SECONDS = 5.0

_log = logging.getLogger(__name__)


async def resume(intake: Intake, log: LogSettings) -> None:
    """Let the journal's pending entries go on to the log, without what of them is there."""
    await asyncio.to_thread(explain, intake.journal.damage, intake.lanes)
    arrived = await find_arrived(intake.journal, intake.lanes, log)
    await intake.recognise(arrived)
    intake.forwarder.open(arrived)


async def find_arrived(
    journal: Journal, lanes: Mapping[str, Lane], log: LogSettings
) -> dict[int, frozenset[int]]:
    """By sequence, the places of the pending entries' events that are in the log.

    Reads the stream and rejected topics from the oldest pending entry's time on. Waits as long as
    Kafka is away: LogError comes from there.
    """
    started = time.monotonic()
    first, since = await _pending(journal)
    damaged = [
        one for one in journal.damage.lost() if one.events and one.received_at and not one.searched
    ]
    for one in damaged:
        first = min(first or one.first, one.first)
        for name in one.events or ():
            since[name] = min(since.get(name, one.received_at), one.received_at)
    if first is None:
        return {}
    topics = [
        topic
        for name in since
        if name in lanes
        for topic in (lanes[name].topic, lanes[name].rejected_topic)
    ]
    found: dict[int, set[int]] = {}
    if topics:
        await asyncio.to_thread(
            _search, log, topics, min(since.values()), journal.identity, first, found
        )
    _log.info(
        "recovered %d pending entries, of which %d are in the log already, at least in part; "
        "looking took %.2f s",
        journal.pending_entries,
        len(found),
        time.monotonic() - started,
    )
    for one in damaged:
        await asyncio.to_thread(journal.damage.put, without(one, found))
    return {sequence: frozenset(places) for sequence, places in found.items()}


async def _pending(journal: Journal) -> tuple[int | None, dict[str, int]]:
    """The first pending entry, and per stream when its oldest one was received."""
    first: int | None = None
    since: dict[str, int] = {}
    after = 0
    while entries := await journal.read(after, _READ_BYTES):
        for sequence, payload in entries:
            seen = glimpse(payload)
            if seen is not None:
                first = sequence if first is None else first
                since[seen.stream] = min(since.get(seen.stream, seen.received_at), seen.received_at)
        after = entries[-1][0]
    return first, since


def _search(
    log: LogSettings,
    topics: list[str],
    since: int,
    collector: str,
    first: int,
    found: dict[int, set[int]],
) -> None:
    ours = collector.encode()

    def look(record: Record) -> Decision:
        headers = dict(record.headers)
        if headers.get(event.COLLECTOR) == ours:
            sequence = int(headers[event.SEQUENCE])
            if sequence >= first:
                found.setdefault(sequence, set()).add(int(headers.get(event.INDEX, b"0")))
        return Decision.CONTINUE

    search = Search(log, topics, since)
    while not search.is_over:
        search.run(look, _TURN_SECONDS)
