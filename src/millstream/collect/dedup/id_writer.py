"""Writes senders' ids to a stream's topic of ids, and reads such records."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Iterator

from millstream.collect.dedup.ids import Original
from millstream.errors import LogError
from millstream.log.producing.producer import Producer, RecordMetadata

_HEAD = struct.Struct(">B8sB")  # version, the writing process, length of the collector's name
_ID = struct.Struct(">16sQIIQ")  # id, sequence, index, count, received_at
_VERSION = 1
_IDS_IN_RECORD = 10_000  # 400 kB
_AT_ONCE = 4  # batches of a stream in flight; ids that come meanwhile share the next
_RETRY_SECONDS = 0.5
_MOST_UNWRITTEN = 250_000  # ids, some 10 MB

_log = logging.getLogger(__name__)


class IdWriter:
    """Writes the ids of one stream: many in a record, a few records at a time."""

    def __init__(self, producer: Producer, topic: str, writer: bytes) -> None:
        self.topic = topic
        self._writer = writer
        self._loop = loop = asyncio.get_running_loop()
        self._producer = producer
        self._batch: _Batch | None = None  # the ids that the next record will hold
        self._last = completed_future(loop)  # when the last batch is written
        self._under_way: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Handle | None = None
        self._closed = False
        self._unwritten = 0

    @property
    def has_room(self) -> bool:
        """Whether more may be added: Kafka keeps up."""
        return self._unwritten < _MOST_UNWRITTEN

    async def wait_for_room(self) -> None:
        """Wait until more may be added."""
        while not self.has_room:
            await asyncio.wait([self.written()])

    def add(self, digest: bytes, original: Original) -> None:
        """Write an id soon."""
        if self._batch is None:
            self._batch = _Batch(self._loop.create_future(), self._writer)
        self._batch.add(digest, original)
        self._unwritten += 1
        self._send_soon()

    def written(self) -> asyncio.Future[None]:
        """A future that is done when all ids added so far are in the topic."""
        return self._last if self._batch is None else self._batch.written

    def close(self) -> None:
        """Stop; ids that are not written yet are dropped."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._under_way:
            task.cancel()

    def _send_soon(self) -> None:
        # In the loop's next turn: ids of events that were synced to disk together share a record.
        if self._timer is None and len(self._under_way) < _AT_ONCE and not self._closed:
            self._timer = self._loop.call_soon(self._send_batch)

    def _send_batch(self) -> None:
        self._timer = None
        batch, self._batch = self._batch, None
        if batch is None:
            return
        # In order: a later batch is not reported as written before the earlier ones are.
        before, self._last = self._last, batch.written
        task = self._loop.create_task(self._write(batch, before))
        self._under_way.add(task)
        task.add_done_callback(self._finished)

    async def _write(self, batch: _Batch, before: asyncio.Future[None]) -> None:
        for record in batch.records():
            await self._write_record(record)
        self._unwritten -= batch.size
        await asyncio.wait([before])
        if not batch.written.done():  # a cancelled waiter may have cancelled it
            batch.written.set_result(None)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if self._batch is not None:
            self._send_soon()

    async def _write_record(self, value: bytes) -> RecordMetadata:
        while True:
            try:
                return await self._producer.send(self.topic, value)
            except LogError as error:
                _log.warning("cannot write ids: %s; trying again", error)
                await asyncio.sleep(_RETRY_SECONDS)


class _Batch:
    """Ids that are written together."""

    def __init__(self, written: asyncio.Future[None], writer: bytes) -> None:
        self.written = written
        self.size = 0
        self._writer = writer
        self._packed: dict[str, bytearray] = {}  # by collector

    def add(self, digest: bytes, original: Original) -> None:
        packed = self._packed.setdefault(original.collector, bytearray())
        packed += _ID.pack(
            digest, original.sequence, original.index, original.count, original.received_at
        )
        self.size += 1

    def records(self) -> Iterator[bytes]:
        for collector, packed in self._packed.items():
            name = collector.encode()
            head = _HEAD.pack(_VERSION, self._writer, len(name)) + name
            step = _IDS_IN_RECORD * _ID.size
            for at in range(0, len(packed), step):
                yield head + packed[at : at + step]


def unpack(value: bytes, skip: bytes) -> Iterator[tuple[bytes, Original]]:
    """The ids in a record; none if the process `skip` or another version wrote it."""
    if len(value) < _HEAD.size:
        return
    version, writer, length = _HEAD.unpack_from(value)
    start = _HEAD.size + length
    if version != _VERSION or writer == skip or (len(value) - start) % _ID.size:
        return
    collector = value[_HEAD.size : start].decode()
    for digest, sequence, index, count, received_at in _ID.iter_unpack(memoryview(value)[start:]):
        yield digest, Original(collector, sequence, index, received_at, count)


def completed_future(loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
    """A future that is done already."""
    future: asyncio.Future[None] = loop.create_future()
    future.set_result(None)
    return future
