"""Recognises what was handed in before, by this collector or another, before a restart or after.

Ids are in memory at once when an event is taken in. When it is on disk they are written to the
stream's topic of ids, from which every collector reads them: at its start those of the whole
window, then as they come.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable

from millstream.collect.dedup.id_writer import IdWriter, done, unpack
from millstream.collect.dedup.ids import First, Ids, dedup_id, idempotency_id
from millstream.log.consumer import Reader
from millstream.log.producing.producer import Producer
from millstream.log.record import Record
from millstream.log.search import offsets_since
from millstream.log.settings import LogSettings
from millstream.log.topic_names import seen_topic
from millstream.pipeline.app import App
from millstream.values.clock import now_ms

__all__ = ["Dedup", "First", "dedup_id", "idempotency_id"]

_CLOCKS_MS = 60_000  # so far may the clocks of two collectors be apart
_RECORDS_PER_TURN = 8  # the loop has other work than to read ids

_log = logging.getLogger(__name__)


class Dedup:
    """The ids of one collector's streams. Belongs to one event loop."""

    def __init__(self, app: App, producer: Producer, ids: Ids) -> None:
        self._ids = ids
        self._producer = producer
        self._loop = asyncio.get_running_loop()
        self._writer = secrets.token_bytes(8)
        self._writers = {
            stream.name: IdWriter(producer, seen_topic(app.name, stream.name), self._writer)
            for stream in app.streams.values()
            if stream.remembers_ids
        }
        self._streams = {writer.topic: name for name, writer in self._writers.items()}
        self._reader: Reader | None = None
        self._told_of_forgotten = 0
        self.doubled = 0  # ids that two collectors took in before they knew of each other

    @classmethod
    async def open(
        cls,
        app: App,
        log: LogSettings,
        producer: Producer,
        most: int,
        clock: Callable[[], int] = now_ms,
    ) -> Dedup:
        """With every id of the windows that any collector has written; from then on kept up."""
        windows = {
            stream.name: round(stream.dedup.total_seconds() * 1000)
            for stream in app.streams.values()
            if stream.remembers_ids
        }
        dedup = cls(app, producer, Ids(windows, most, clock))
        if windows:
            since = {
                topic: clock() - windows[stream] - _CLOCKS_MS
                for topic, stream in dedup._streams.items()
            }
            await dedup._follow(log, since)
        return dedup

    def seen(self, stream: str, digest: bytes) -> First | None:
        """Who had the id first within the stream's window; None if it is new.

        The answer can be the very entry that is asked for, when a journal is recovered: compare.
        """
        return self._ids.get(stream, digest)

    def reserve(self, stream: str, digest: bytes, first: First) -> None:
        """Remember the id, here only, while its event is on its way to the disk."""
        self._ids.add(stream, digest, first)
        self._tell()

    def confirm(self, stream: str, digest: bytes, first: First) -> None:
        """Tell the other collectors of an id that is reserved: its event is on disk."""
        self._writers[stream].add(digest, first)

    def has_room(self, stream: str) -> bool:
        """Whether more may be claimed now; if not, Kafka does not keep up."""
        return stream not in self._writers or self._writers[stream].has_room

    async def room(self, stream: str) -> None:
        """Wait until more may be claimed."""
        if stream in self._writers:
            await self._writers[stream].room()

    def claim(self, stream: str, digest: bytes, first: First) -> None:
        """Reserve and confirm; if another event has the id, that one keeps it."""
        writer = self._writers.get(stream)
        if writer is not None and self._ids.add(stream, digest, first) is None:
            writer.add(digest, first)
            self._tell()

    def release(self, stream: str, digest: bytes, first: First) -> None:
        """Forget an id whose event did not get onto the disk.

        If it was claimed, other collectors may have read it: they forget it after the window only.
        """
        self._ids.remove(stream, digest, first)

    def written(self, stream: str) -> asyncio.Future[None]:
        """Done when everything that was claimed so far is in the topic.

        An entry must not be settled before: after a crash in between, nobody would know its ids.
        """
        return self._writers[stream].written() if stream in self._writers else done(self._loop)

    @property
    def held(self) -> int:
        """How many ids are remembered."""
        return len(self._ids)

    @property
    def forgotten(self) -> int:
        """How many were forgotten before their window was over, for want of room."""
        return self._ids.forgotten

    async def close(self, seconds: float = 5.0) -> None:
        """Write what is left, for so long, then end."""
        unwritten = [writer.written() for writer in self._writers.values()]
        if unwritten:
            await asyncio.wait(unwritten, timeout=seconds)
        for writer in self._writers.values():
            writer.close()
        if self._reader is not None:
            self._reader.close()
            await asyncio.to_thread(self._reader.join)

    async def _follow(self, log: LogSettings, since: dict[str, int]) -> None:
        caught_up = asyncio.Event()
        self._reader = Reader(
            log,
            await asyncio.to_thread(offsets_since, log, since),
            self._take,
            loop=self._loop,
            caught_up=caught_up.set,
            batch=_RECORDS_PER_TURN,
        )
        await caught_up.wait()
        self.doubled = 0  # those were counted when it happened

    def _take(self, records: list[Record]) -> None:
        for record in records:
            stream = self._streams[record.topic]
            for digest, first in unpack(record.value or b"", skip=self._writer):
                if self._ids.add(stream, digest, first) is not None:
                    self.doubled += 1
        self._tell()

    def _tell(self) -> None:
        if self._ids.forgotten != self._told_of_forgotten:
            self._told_of_forgotten = self._ids.forgotten
            _log.warning(
                "forgot ids before their dedup window was over, %d so far: %d are remembered at "
                "most; raise collect.dedup_ids, or shorten the streams' dedup",
                self._ids.forgotten,
                self._ids.most,
            )
