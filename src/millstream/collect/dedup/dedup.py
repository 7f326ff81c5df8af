"""Recognises events that were received before, by any collector, also across restarts.

An event's id is in memory as soon as the event is accepted. When the event is on disk, the id is
written to the stream's topic of ids. Every collector reads that topic: at its start the whole
window, then new records.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable

from millstream.collect.dedup.id_writer import IdWriter, completed_future, unpack
from millstream.collect.dedup.ids import Original, RememberedIds, dedup_id, idempotency_id
from millstream.log.consumer import Reader
from millstream.log.producing.producer import Producer
from millstream.log.record import Record
from millstream.log.search import offsets_since
from millstream.log.settings import LogSettings
from millstream.log.topic_names import seen_topic
from millstream.pipeline.app import App
from millstream.values.clock import now_ms

__all__ = ["Dedup", "Original", "dedup_id", "idempotency_id"]

_CLOCKS_MS = 60_000  # maximum clock difference between two collectors
_RECORDS_PER_TURN = 8  # more would block the loop

_log = logging.getLogger(__name__)


class Dedup:
    """The ids of one collector's streams. Belongs to one event loop. Made by `open`."""

    def __init__(self, app: App, producer: Producer, ids: RememberedIds) -> None:
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
        self._warned_of_forgotten = 0
        self.doubled = 0  # ids that two collectors accepted before each knew of the other

    @classmethod
    async def open(
        cls,
        app: App,
        log: LogSettings,
        producer: Producer,
        most: int,
        clock: Callable[[], int] = now_ms,
    ) -> Dedup:
        """Read the ids of all windows, and follow new ones."""
        windows = {
            stream.name: round(stream.dedup.total_seconds() * 1000)
            for stream in app.streams.values()
            if stream.remembers_ids
        }
        dedup = cls(app, producer, RememberedIds(windows, most, clock))
        if windows:
            since = {
                topic: clock() - windows[stream] - _CLOCKS_MS
                for topic, stream in dedup._streams.items()
            }
            await dedup._follow(log, since)
        return dedup

    def seen(self, stream: str, digest: bytes) -> Original | None:
        """The event that had the id first within the stream's window; None if the id is new.

        While a journal is recovered, that can be the same event: compare.
        """
        return self._ids.get(stream, digest)

    def reserve(self, stream: str, digest: bytes, original: Original) -> None:
        """Remember an id in memory, while its event is being written to disk."""
        self._ids.add(stream, digest, original)
        self._warn_if_forgotten()

    def confirm(self, stream: str, digest: bytes, original: Original) -> None:
        """Write a reserved id to the topic: its event is on disk."""
        self._writers[stream].add(digest, original)

    def has_room(self, stream: str) -> bool:
        """Whether more ids may be written now; if not, Kafka is behind."""
        return stream not in self._writers or self._writers[stream].has_room

    async def wait_for_room(self, stream: str) -> None:
        """Wait until more ids may be written."""
        if stream in self._writers:
            await self._writers[stream].wait_for_room()

    def claim(self, stream: str, digest: bytes, original: Original) -> None:
        """Reserve and confirm an id, unless another event has it."""
        writer = self._writers.get(stream)
        if writer is not None and self._ids.add(stream, digest, original) is None:
            writer.add(digest, original)
            self._warn_if_forgotten()

    def release(self, stream: str, digest: bytes, original: Original) -> None:
        """Forget a reserved id whose event was not written to disk.

        If the id was written to the topic, other collectors keep it until the window ends.
        """
        self._ids.remove(stream, digest, original)

    def written(self, stream: str) -> asyncio.Future[None]:
        """A future that is done when all ids confirmed so far are in the topic.

        An entry must not be settled before: after a crash in between, its ids would be unknown.
        """
        return (
            self._writers[stream].written()
            if stream in self._writers
            else completed_future(self._loop)
        )

    @property
    def held(self) -> int:
        """The number of remembered ids."""
        return len(self._ids)

    @property
    def forgotten(self) -> int:
        """The number of ids forgotten before their window ended, because memory is limited."""
        return self._ids.forgotten

    async def close(self, seconds: float = 5.0) -> None:
        """Wait up to `seconds` for ids to be written, then stop."""
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
            self._add_records,
            loop=self._loop,
            caught_up=caught_up.set,
            batch=_RECORDS_PER_TURN,
        )
        await caught_up.wait()
        self.doubled = 0  # those were counted when they were accepted

    def _add_records(self, records: list[Record]) -> None:
        for record in records:
            stream = self._streams[record.topic]
            for digest, original in unpack(record.value or b"", skip=self._writer):
                if self._ids.add(stream, digest, original) is not None:
                    self.doubled += 1
        self._warn_if_forgotten()

    def _warn_if_forgotten(self) -> None:
        if self._ids.forgotten != self._warned_of_forgotten:
            self._warned_of_forgotten = self._ids.forgotten
            _log.warning(
                "forgot ids before their dedup window ended, %d so far: at most %d are remembered; "
                "raise collect.dedup_ids, or shorten the streams' dedup",
                self._ids.forgotten,
                self._ids.most,
            )
