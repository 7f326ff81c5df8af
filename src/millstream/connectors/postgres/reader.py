"""Keeps a stream supplied with what happens to the tables of a PostgreSQL database."""

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
from millstream.connectors.postgres.protocol.session import Session
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
    """Snapshot first, then the changes since; each is confirmed to the server once on disk."""

    def __init__(self, stream: str, source: PostgresSource, settings: SourceSettings) -> None:
        super().__init__(stream, source, settings)
        self.behind_unit = "bytes"
        self._address = Address.of(source.url)
        self._slot = source.slot_of(stream)
        self._publication = source.publication_of(stream)
        self._events = ChangeEvents(self._slot, source.address)
        self._outlet: OutputBuffer | None = None  # outlives connections: what is on its way arrives
        self._session = 0  # the server's number for the last connection that had the slot

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
            # Decoding does not check what a real server would never send.
            raise ConnectionLost(f"the server sent what cannot be read: {error!r}") from error
        finally:
            self.behind = None

    def _open(
        self, *, replication: bool = False
    ) -> contextlib.AbstractAsyncContextManager[Session]:
        return Session.open(self._address, seconds=_OPEN_SECONDS, replication=replication)

    async def _read(self, main: Session, output: ReaderOutput) -> None:
        if self._outlet is None:
            self._outlet = OutputBuffer(output, self.settings)
        outlet = self._outlet
        async with asyncio.timeout(_PREPARE_SECONDS):
            await catalog.claim_slot(main, self._slot, self._session)
            self._session = main.session
            start = await find_start_point(main, self.stream, self.source, outlet.bookmark)
            types = await catalog.load_types(main)
        if start.lost:
            start = await self._begin_anew(main, start, outlet)
        async with _beside(self._measure(outlet)):
            bookmark = await self._read_tables(main, start, types, outlet)
            async with asyncio.timeout(_PREPARE_SECONDS):
                await main.start(
                    f"START_REPLICATION SLOT {quoted(self._slot)} LOGICAL {lsn_text(bookmark.lsn)}"
                    f" (proto_version '1', publication_names {literal(quoted(self._publication))})"
                )
            changes = ReplicationStream(
                main, outlet, self._events, bookmark, start.tables, types, self.received
            )
            timeout = start.server.sender_timeout or 3 * _REPORT_SECONDS
            every = min(timeout / 3, _REPORT_SECONDS)
            settings = self.settings
            async with _beside(changes.report(every, settings.ping_after, settings.ping_timeout)):
                await changes.run()

    async def _begin_anew(
        self, main: Session, start: StartPoint, outlet: OutputBuffer
    ) -> StartPoint:
        """Put on disk that what was read counts no more, before the new slot looks like the old."""
        _log.warning("stream %s: %s; reading its tables anew", self.stream, start.lost)
        outlet.begin(0, anew=True)
        at = CommitPoint(start.server.end, datetime.now(UTC))
        for table in start.tables:
            outlet.add(self._events.truncate(table.name, at, f"{table.name}/lost"))
        self.received(await outlet.flush(start.bookmark))
        await outlet.stored()
        async with asyncio.timeout(_PREPARE_SECONDS):
            if await catalog.find_slot(main, self._slot) is not None:
                await catalog.drop_slot(main, self._slot)
            return await find_start_point(main, self.stream, self.source, start.bookmark)

    async def _read_tables(
        self, main: Session, start: StartPoint, types: TypeCodec, outlet: OutputBuffer
    ) -> Bookmark:
        """Make the slot, if it is missing, and read the tables that need it."""
        exists = start.bookmark.lsn > 0
        if exists and not start.to_read:
            outlet.begin(start.bookmark.lsn, anew=False)
            return start.bookmark
        # A slot of its own, for the snapshot that comes with it, where ours is older.
        name = f"{self._slot}_{secrets.token_hex(6)}" if exists else self._slot
        made = await self._make_slot(main, name, temporary=exists)
        if not exists:
            start = replace(start, bookmark=msgspec.structs.replace(start.bookmark, lsn=made.lsn))
        bookmark = start.bookmark
        outlet.begin(bookmark.lsn, anew=not exists)
        if start.to_read:
            async with self._open() as other:
                bookmark = await read_tables(
                    other,
                    self._publication,
                    start,
                    made,
                    types,
                    self._events,
                    outlet,
                    self.received,
                )
        if exists:
            await catalog.drop_slot(main, name)
        return bookmark

    async def _make_slot(self, main: Session, name: str, *, temporary: bool) -> CreatedSlot:
        making = asyncio.ensure_future(catalog.create_slot(main, name, temporary=temporary))
        try:
            while not (await asyncio.wait([making], timeout=self.settings.ping_after))[0]:
                self._state.error = (
                    "waiting for the transactions that run on the server to end: "
                    "only then is there a place in its log to begin at"
                )
        finally:
            making.cancel()
        self._state.error = ""
        return await making

    async def _measure(self, outlet: OutputBuffer) -> None:
        """Ask, in a session beside, how far the server's log goes beyond what is on disk here."""
        pause = min(_LAG_SECONDS, self.settings.ping_after)
        while True:
            try:
                async with self._open() as other:
                    while True:
                        [[end]] = await other.query(_LAG)
                        place = lsn_number((end or b"").decode())
                        if outlet.confirmed:  # else there is no slot yet
                            self.behind = max(0, place - outlet.confirmed)
                        await asyncio.sleep(pause)
            except (OSError, ConnectionLost, ValueError):
                self.behind = None  # the reading itself goes on
            await asyncio.sleep(pause)


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """The work goes on meanwhile, and is ended then; what it raises counts for nothing."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
