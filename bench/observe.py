"""Records when each event became visible to a client and in the log."""

from __future__ import annotations

import asyncio
import contextlib
import time
from array import array
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field

import msgspec
from bench.load import KEYS

from millstream.client import Change, Client
from millstream.log.consumer import bounds, read_range
from millstream.log.settings import LogSettings


class _Row(msgspec.Struct):
    id: int


@dataclass
class Sightings:
    """The newest event of each group, and when it was seen."""

    ids: array[int] = field(default_factory=lambda: array("q"))
    times: array[int] = field(default_factory=lambda: array("q"))  # nanoseconds since the epoch

    newest: int = -1

    def add(self, event: int, at: int) -> None:
        self.newest = max(self.newest, event)
        self.ids.append(event)
        self.times.append(at)

    def first_seen(self, events: Iterable[int], *, grouped: bool) -> dict[int, int]:
        """When each event was first seen.

        A batch may take in several events of a group and give one row: that row shows them all.
        """
        if not grouped:
            seen: dict[int, int] = {}
            for event, at in zip(self.ids, self.times, strict=True):
                seen.setdefault(event, at)
            return {event: seen[event] for event in events if event in seen}
        by_group: dict[int, list[tuple[int, int]]] = {}
        for event, at in zip(self.ids, self.times, strict=True):
            rows = by_group.setdefault(event % KEYS, [])
            if not rows or event > rows[-1][0]:
                rows.append((event, at))
        return dict(_covering(sorted(events), by_group))


def _covering(
    events: list[int], by_group: dict[int, list[tuple[int, int]]]
) -> Iterator[tuple[int, int]]:
    reached = dict.fromkeys(by_group, 0)
    for event in events:
        group = event % KEYS
        rows, at = by_group.get(group, []), reached.get(group, 0)
        while at < len(rows) and rows[at][0] < event:
            at += 1
        reached[group] = at
        if at < len(rows):
            yield event, rows[at][1]


@contextlib.asynccontextmanager
async def watching(
    url: str, *, view: str | None = None, stream: str | None = None
) -> AsyncIterator[Sightings]:
    """Record what one client sees while the block runs."""
    sightings = Sightings()
    async with Client(url) as client, client.changes(view, stream=stream, limit=1) as changes:
        first = asyncio.Event()

        async def watch() -> None:
            async for message in changes:
                now = time.time_ns()
                first.set()
                if isinstance(message, Change) and message.row is not None:
                    sightings.add(message.row["id"], now)

        watcher = asyncio.create_task(watch())
        await asyncio.wait_for(first.wait(), 30)
        yield sightings
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher


class Rows:
    """Reads when each record of a topic was written, from its time-stamp (milliseconds)."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._log, self._topic = LogSettings(bootstrap=bootstrap), topic
        self._read: dict[int, int] = {}  # partition → next offset
        self._decode = msgspec.json.Decoder(_Row).decode
        self.seen = Sightings()

    def look(self) -> Sightings:
        """Read the new records; returns all that were read so far."""
        for partition, (start, stop) in bounds(self._log, self._topic).items():
            start = max(start, self._read.get(partition, 0))
            for record in read_range(self._log, self._topic, partition, start, stop):
                if record.value is not None:
                    self.seen.add(self._decode(record.value).id, record.timestamp * 1_000_000)
            self._read[partition] = stop
        return self.seen


def logged(bootstrap: str, topic: str) -> Sightings:
    """When each current record of a topic was written."""
    return Rows(bootstrap, topic).look()
