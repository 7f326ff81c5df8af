"""Reader of the tables of a PostgreSQL database, and of their changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import struct
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from millstream.connectors.interface import ReaderOutput
from millstream.connectors.postgres import catalog
from millstream.connectors.postgres.bookmark import Bookmark
from millstream.connectors.postgres.catalog import CreatedSlot
from millstream.connectors.postgres.change_events import ChangeEvents, CommitPoint
from millstream.connectors.postgres.description import PostgresSource
from millstream.connectors.postgres.output_buffer import OutputBuffer
from millstream.connectors.postgres.protocol.address import Address
from millstream.connectors.postgres.protocol.message_codec import (
    ServerError,
    literal,
    lsn_number,
    lsn_text,
    quoted,
)
from millstream.connectors.postgres.protocol.server_session import Session
from millstream.connectors.postgres.protocol.value_codec import TypeCodec
from millstream.connectors.postgres.replication_stream import ReplicationStream
from millstream.connectors.postgres.snapshot import read_tables
from millstream.connectors.postgres.start_point import StartPoint, find_start_point
from millstream.connectors.reading.reconnecting_reader import ConnectionLost, ReconnectingReader
from millstream.connectors.settings import SourceSettings

_OPEN_SECONDS = 10.0
_PREPARE_SECONDS = 30.0
_REPORT_SECONDS = 10.0
_LAG_SECONDS = 5.0
_LAG = (
    "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()"
    " ELSE pg_current_wal_flush_lsn() END"
)

_log = logging.getLogger(__name__)


class PostgresReader(ReconnectingReader[PostgresSource]):
    """Reads a snapshot, then the changes since; confirms to the server what is on disk."""

    def __init__(self, stream: str, source: PostgresSource, settings: SourceSettings) -> None:
        super().__init__(stream, source, settings)
        self.behind_unit = "bytes"
        self._address = Address.of(source.url)
        self._slot = source.slot_of(stream)
        self._publication = source.publication_of(stream)
        self._events = ChangeEvents(self._slot, source.address)
        self._buffer: OutputBuffer | None = None  # outlives sessions: its offers are stored later
        self._backend_pid = 0  # the process id of the last session's backend

    async def read(self, output: ReaderOutput) -> None:
        """Read until the connection ends."""
        try:
            async with self._open(replication=True) as main:
                self.connected()
                await self._read(main, output)
        except ServerError as error:
            if error.code == catalog.OBJECT_IN_USE:
                raise ConnectionLost(catalog.slot_in_use(self._slot)) from None
            raise ConnectionLost(catalog.with_remedy(error)) from None
        except (struct.error, IndexError, ValueError, OverflowError) as error:
            # Decoding does not check for data that a real server never sends.
            raise ConnectionLost(f"the server sent what cannot be read: {error!r}") from error
        finally:
            self.behind = None

    def _open(
        self, *, replication: bool = False
    ) -> contextlib.AbstractAsyncContextManager[Session]:
        return Session.open(self._address, seconds=_OPEN_SECONDS, replication=replication)

    async def _read(self, main: Session, output: ReaderOutput) -> None:
        if self._buffer is None:
            self._buffer = OutputBuffer(output, self.settings, self.received)
        buffer = self._buffer
        async with asyncio.timeout(_PREPARE_SECONDS):
            await catalog.claim_slot(main, self._slot, self._backend_pid)
            self._backend_pid = main.backend_pid
            start = await find_start_point(main, self.stream, self.source, buffer.bookmark)
            types = await catalog.load_types(main)
        if start.lost:
            start = await self._start_over(main, start, buffer)
        async with _in_background(self._measure(buffer)):
            bookmark = await self._read_tables(main, start, types, buffer)
            async with asyncio.timeout(_PREPARE_SECONDS):
                await main.start(
                    f"START_REPLICATION SLOT {quoted(self._slot)} LOGICAL {lsn_text(bookmark.lsn)}"
                    f" (proto_version '1', publication_names {literal(quoted(self._publication))})"
                )
            changes = ReplicationStream(main, buffer, self._events, bookmark, start.tables, types)
            timeout = start.server.sender_timeout or 3 * _REPORT_SECONDS
            every = min(timeout / 3, _REPORT_SECONDS)
            limits = self.settings.ping_after, self.settings.ping_timeout
            async with _in_background(changes.report(every, *limits)):
                await changes.run()

    async def _start_over(
        self, main: Session, start: StartPoint, buffer: OutputBuffer
    ) -> StartPoint:
        """Discard what was read before, and drop the old slot.

        The truncate events are on disk before the new slot is created: after a crash in between,
        the new slot could be mistaken for the old one.
        """
        _log.warning("stream %s: %s; reading its tables again", self.stream, start.lost)
        buffer.begin(0, new_slot=True)
        at = CommitPoint(start.server.end, datetime.now(UTC))
        for table in start.tables:
            buffer.add(self._events.truncate(table.name, at, f"{table.name}/lost"))
        await buffer.flush(start.bookmark)
        await buffer.stored()
        async with asyncio.timeout(_PREPARE_SECONDS):
            if await catalog.find_slot(main, self._slot) is not None:
                await catalog.drop_slot(main, self._slot)
            return await find_start_point(main, self.stream, self.source, start.bookmark)

    async def _read_tables(
        self, main: Session, start: StartPoint, types: TypeCodec, buffer: OutputBuffer
    ) -> Bookmark:
        """Create the slot if it is missing, and read the tables that need a snapshot."""
        exists = start.bookmark.lsn > 0
        if exists and not start.to_read:
            buffer.begin(start.bookmark.lsn, new_slot=False)
            return start.bookmark
        # If our slot exists already, a temporary slot provides the snapshot.
        name = f"{self._slot}_{secrets.token_hex(6)}" if exists else self._slot
        created = await self._create_slot(main, name, temporary=exists)
        if not exists:
            start = replace(
                start, bookmark=msgspec.structs.replace(start.bookmark, lsn=created.lsn)
            )
        bookmark = start.bookmark
        buffer.begin(bookmark.lsn, new_slot=not exists)
        if start.to_read:
            async with self._open() as other:
                bookmark = await read_tables(
                    other, self._publication, start, created, types, self._events, buffer
                )
        if exists:
            await catalog.drop_slot(main, name)
        return bookmark

    async def _create_slot(self, main: Session, name: str, *, temporary: bool) -> CreatedSlot:
        creating = asyncio.ensure_future(catalog.create_slot(main, name, temporary=temporary))
        try:
            while not (await asyncio.wait([creating], timeout=self.settings.ping_after))[0]:
                self._state.error = (
                    "waiting for the transactions that run on the server to end: "
                    "replication can only start after them"
                )
        finally:
            creating.cancel()
        self._state.error = ""
        return await creating

    async def _measure(self, buffer: OutputBuffer) -> None:
        """Measure, in another session, how far the server's log is ahead of our disk."""
        pause = min(_LAG_SECONDS, self.settings.ping_after)
        while True:
            try:
                async with self._open() as other:
                    while True:
                        [[end]] = await other.query(_LAG)
                        at = lsn_number((end or b"").decode())
                        if buffer.confirmed:  # else there is no slot yet
                            self.behind = max(0, at - buffer.confirmed)
                        await asyncio.sleep(pause)
            except (OSError, ConnectionLost, ValueError):
                self.behind = None  # reading continues
            await asyncio.sleep(pause)


@contextlib.asynccontextmanager
async def _in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run `work` during the block, and cancel it at the end; its exceptions are ignored."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
