"""Changes that are no longer in memory, read from Kafka for one client."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Generator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from millstream.errors import InvalidPosition, LogError
from millstream.log.consumer import bounds, read_range
from millstream.log.record import Record
from millstream.log.search import offsets_since
from millstream.log.settings import LogSettings
from millstream.serve.views.encoding import Encoding
from millstream.serve.views.served_view import PositionUnavailable, ServedView
from millstream.store.views.ring import Offsets, Row, ViewChange
from millstream.values.position import Position

_log = logging.getLogger(__name__)
_CHUNK = 500
_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class StartTime:
    """The first change that was written at this time or later; milliseconds since the epoch."""

    milliseconds: int


Start = Position | StartTime


def read_start(text: str | None) -> Start | None:
    """The start in `after`; InvalidPosition if it is neither a position nor a time."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return Position.parse(text)
    if moment.tzinfo is None:
        raise InvalidPosition(
            f"the time {text[:100]!r} has no time zone", remedy="write 2026-11-01T00:00:00Z for UTC"
        )
    return StartTime(max(0, int(moment.timestamp() * 1000)))


class Replay:
    """Reads ranges of a view's topic in threads, so that the event loop never waits for Kafka."""

    def __init__(self, log: LogSettings, limit: int) -> None:
        self._settings = log
        self._limit = limit

    @property
    def limit(self) -> int:
        """Records that are read for one client that resumes."""
        return self._limit

    async def changes(
        self, served: ServedView, start: Offsets, encoding: Encoding, *, unlimited: bool = False
    ) -> AsyncIterator[ViewChange]:
        """Every change from `start` to the oldest in the ring, partition by partition.

        PositionUnavailable if the log lacks one. A missing offset means that Kafka compacted
        records away, perhaps deletes: a client without them would keep rows that are gone. The same
        if only a row before `start` says whether a change is for clients with this encoding.
        """
        table, restarts, stop = served.table, served.restarts, served.table.ring.floor
        ranges = [(p, start[p] if p < len(start) else 0, high) for p, high in enumerate(stop)]
        behind = sum(max(0, high - low) for _, low, high in ranges)
        if behind > self._limit and not (unlimited or served.sends_full_history):
            raise PositionUnavailable(f"{behind} changes behind; at most {self._limit} are read")
        for partition, low, high in ranges:
            if low < table.replayable_from.get(partition, 0):
                raise PositionUnavailable("it is too long ago")
            if low >= high:
                continue
            before: dict[str, Row | None] = {}
            async for record in self._records(served, partition, low, high):
                if served.restarts != restarts:
                    return  # the subscription notices by itself
                if table.is_ignored(partition, record.offset):
                    continue
                change = _change(served, record, start, before)
                if change.key is not None:
                    before[change.key] = change.row
                if encoding.is_undecidable(change):
                    raise PositionUnavailable("a row changed that may not be yours to see")
                yield change

    async def first(self, served: ServedView) -> Offsets:
        """The offsets of the log's oldest records; waits while Kafka is away."""
        while True:
            try:
                held = await asyncio.to_thread(bounds, self._settings, served.topic)
                return tuple(low for _, (low, _) in sorted(held.items()))
            except LogError as error:
                _log.warning("%s", error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def since(self, served: ServedView, start: StartTime) -> Offsets:
        """The offsets of the first records from a time on, or the log's ends; LogError."""
        asked = {served.topic: start.milliseconds}
        found = await asyncio.to_thread(offsets_since, self._settings, asked)
        return tuple(found[served.topic, partition] for partition in range(len(found)))

    async def is_beyond_end(self, served: ServedView, offsets: Offsets) -> bool:
        """Whether `offsets` are beyond the last records in Kafka."""
        try:
            held = await asyncio.to_thread(bounds, self._settings, served.topic)
        except LogError:
            return False  # Kafka is away, so nothing shows that the position is wrong
        return any(offset > held.get(p, (0, 0))[1] for p, offset in enumerate(offsets))

    async def _records(
        self, served: ServedView, partition: int, low: int, high: int
    ) -> AsyncIterator[Record]:
        chunks = RecordChunks(read_range(self._settings, served.topic, partition, low, high))
        next_offset = low
        try:
            while next_offset < high:
                try:
                    chunk = await asyncio.to_thread(chunks.read)
                except LogError as error:
                    raise PositionUnavailable(
                        f"the log does not hold it: {error.message}"
                    ) from error
                for record in chunk:
                    if record.offset != next_offset and not served.is_uncompacted:
                        raise PositionUnavailable("the log was compacted since")
                    next_offset = record.offset + 1
                    yield record
                if not chunk:
                    if served.is_uncompacted:
                        return
                    raise PositionUnavailable("the log was compacted since")
        finally:
            await asyncio.to_thread(chunks.close)


class RecordChunks:
    """Reads records in chunks, in any thread; blocks.

    A client may disconnect while a thread reads for it. `close` waits until that read has ended.
    """

    def __init__(self, records: Generator[Record, None, None]) -> None:
        self._records = records
        self._lock = threading.Lock()

    def read(self) -> list[Record]:
        with self._lock:
            return list(islice(self._records, _CHUNK))

    def close(self) -> None:
        with self._lock:
            self._records.close()


def _change(
    served: ServedView, record: Record, start: Offsets, before: dict[str, Row | None]
) -> ViewChange:
    p, table = record.partition, served.table
    row = None if record.value is None else table.read_again(p, record.offset, record.value)
    offsets = (*start[:p], *(0,) * (p - len(start)), record.offset + 1, *start[p + 1 :])
    if not table.keyed:
        return ViewChange(None, row, None, p, record.offset, offsets, record.timestamp)
    key = (record.key or b"null").decode()
    held, known = before.get(key), key in before
    return ViewChange(key, row, held, p, record.offset, offsets, record.timestamp, known)
