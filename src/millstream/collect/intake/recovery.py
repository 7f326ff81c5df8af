"""Recovery after a restart: finds which events of pending journal entries are in the log."""

from __future__ import annotations

import asyncio
import logging
import time

from millstream.collect.intake.intake import Intake
from millstream.collect.intake.lost_events import count_lost_events, without_logged
from millstream.collect.raw_message import decode_head
from millstream.log.record import Record
from millstream.log.search import Decision, Search
from millstream.log.settings import LogSettings
from millstream.values import event

_READ_BYTES = 16 << 20
_TURN_SECONDS = 5.0

_log = logging.getLogger(__name__)


async def resume(intake: Intake, log: LogSettings) -> None:
    """Start sending the journal's pending entries, without the events that are in the log."""
    await asyncio.to_thread(count_lost_events, intake.journal.damage, intake.streams)
    logged = await find_logged(intake, log)
    await intake.recover_ids(logged)
    intake.forwarder.open(logged)


async def find_logged(intake: Intake, log: LogSettings) -> dict[int, frozenset[int]]:
    """The indexes of the pending entries' events that are in the log, by sequence.

    Reads the stream and rejected topics from the oldest pending entry's time on; LogError if Kafka
    fails.
    """
    started, journal, streams = time.monotonic(), intake.journal, intake.streams
    first, since = await _pending(intake)
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
        if name in streams
        for topic in (streams[name].topic, streams[name].rejected_topic)
    ]
    found: dict[int, set[int]] = {}
    if topics:
        await asyncio.to_thread(
            _search, log, topics, min(since.values()), journal.identity, first, found
        )
    _log.info(
        "recovered %d pending entries; %d of them are in the log, at least in part; the search "
        "took %.2f s",
        journal.pending_entries,
        len(found),
        time.monotonic() - started,
    )
    for one in damaged:
        await asyncio.to_thread(journal.damage.put, without_logged(one, found))
    return {sequence: frozenset(indexes) for sequence, indexes in found.items()}


async def _pending(intake: Intake) -> tuple[int | None, dict[str, int]]:
    """The first pending entry, and per stream the oldest time of receipt."""
    first: int | None = None
    since: dict[str, int] = {}
    after = 0
    while entries := await intake.read_journal(after, _READ_BYTES):
        for sequence, payload in entries:
            seen = decode_head(payload)
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
