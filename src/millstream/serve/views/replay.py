"""Changes that are no longer in memory, read from Kafka for one client."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Generator
from itertools import islice

from millstream.errors import LogError
from millstream.log.consumer import bounds, read_range
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.serve.views.served_view import Live
from millstream.store.views.ring import Change, Offsets, Row

_log = logging.getLogger(__name__)
_CHUNK = 500
_AGAIN_SECONDS = 1.0


class Gone(Exception):
    """The log does not hold every change since that position; the message says why."""


class Replay:
    """Reads ranges of a view's topic in threads, so that the event loop never waits for Kafka."""

    def __init__(self, log: LogSettings, limit: int) -> None:
        self._log = log
        self._limit = limit

    async def changes(self, live: Live, start: Offsets) -> AsyncIterator[Change]:
        """Every change from `start` up to what the ring holds, partition by partition.

        Raises Gone if one of them is not in the log any more: a hole in the offsets means that
        compaction took records away, and the deletes among them would be missed.
        """
        table, beginning, stop = live.table, live.beginnings, live.table.ring.floor
        ranges = [(p, start[p] if p < len(start) else 0, high) for p, high in enumerate(stop)]
        wanted = sum(max(0, high - low) for _, low, high in ranges)
        if wanted > self._limit and not live.adds_up:
            raise Gone(f"{wanted} changes behind; at most {self._limit} are read again")
        for partition, low, high in ranges:
            if low < table.replayable.get(partition, 0):
                raise Gone("it is too long ago")
            if low >= high:
                continue
            before: dict[str, Row | None] = {}
            async for record in self._records(live, partition, low, high):
                if live.beginnings != beginning:
                    return  # the subscription notices by itself
                if table.is_ignored(partition, record.offset):
                    continue
                change = _change(live, record, start)
                if change.key is None:
                    yield change
                    continue
                known = change.key in before
                yield Change(
                    change.key,
                    change.row,
                    before.get(change.key),
                    partition,
                    change.offset,
                    change.offsets,
                    change.timestamp,
                    known,
                )
                before[change.key] = change.row

    async def first(self, live: Live) -> Offsets:
        """Where the log's oldest records are; waits while Kafka is away."""
        while True:
            try:
                held = await asyncio.to_thread(bounds, self._log, live.topic)
                return tuple(low for _, (low, _) in sorted(held.items()))
            except LogError as error:
                _log.warning("%s", error)
                await asyncio.sleep(_AGAIN_SECONDS)

    async def is_beyond_end(self, live: Live, offsets: Offsets) -> bool:
        """Whether `offsets` name records that Kafka has not got."""
        try:
            held = await asyncio.to_thread(bounds, self._log, live.topic)
        except LogError:
            return False  # Kafka is away: nothing says that the client is wrong
        return any(offset > held.get(p, (0, 0))[1] for p, offset in enumerate(offsets))

    async def _records(
        self, live: Live, partition: int, low: int, high: int
    ) -> AsyncIterator[Record]:
        chunks = Chunks(read_range(self._log, live.topic, partition, low, high))
        next_offset = low
        try:
            while next_offset < high:
                try:
                    chunk = await asyncio.to_thread(chunks.take)
                except LogError as error:
                    raise Gone(f"the log does not hold it: {error.message}") from error
                for record in chunk:
                    if record.offset != next_offset and not live.is_whole:
                        raise Gone("the log was compacted since")
                    next_offset = record.offset + 1
                    yield record
                if not chunk:
                    if live.is_whole:
                        return
                    raise Gone("the log was compacted since")
        finally:
            await asyncio.to_thread(chunks.close)


class Chunks:
    """Records some at a time, in any thread; blocks.

    A client may leave while a thread reads for it: closing waits until that has what it wanted.
    """

    def __init__(self, records: Generator[Record, None, None]) -> None:
        self._records = records
        self._lock = threading.Lock()

    def take(self) -> list[Record]:
        with self._lock:
            return list(islice(self._records, _CHUNK))

    def close(self) -> None:
        with self._lock:
            self._records.close()


def _change(live: Live, record: Record, start: Offsets) -> Change:
    p, table = record.partition, live.table
    row = None if record.value is None else table.read_again(p, record.offset, record.value)
    key = (record.key or b"null").decode() if table.keyed else None
    offsets = (*start[:p], *(0,) * (p - len(start)), record.offset + 1, *start[p + 1 :])
    return Change(key, row, None, p, record.offset, offsets, record.timestamp)
