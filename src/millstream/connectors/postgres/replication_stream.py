"""Follows the changes of a replication slot."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import Iterable

import msgspec

from millstream.connectors.postgres.bookmark import Bookmark
from millstream.connectors.postgres.catalog import SourceTable
from millstream.connectors.postgres.change_events import ChangeEvents, CommitPoint, RowEncoder
from millstream.connectors.postgres.output_buffer import OutputBuffer
from millstream.connectors.postgres.protocol.message_codec import error, packet
from millstream.connectors.postgres.protocol.pgoutput import (
    Relation,
    RowChange,
    TransactionBegin,
    TransactionCommit,
    Truncate,
    decode,
)
from millstream.connectors.postgres.protocol.server_session import Session
from millstream.connectors.postgres.protocol.value_codec import TypeCodec
from millstream.connectors.reading.reconnecting_reader import ConnectionLost

_DATA = 25  # where the payload starts, after the LSNs and the server's clock
_KEEPALIVE = struct.Struct("!QqB")
_STATUS = struct.Struct("!cQQQqB")
_EPOCH = 946_684_800  # 2000-01-01, the start of PostgreSQL's time
_LEAST_PAUSE = 0.05  # seconds between two reports, however fast the disk is


class ReplicationStream:
    """Reads the replication stream of one session, from `bookmark` on."""

    def __init__(
        self,
        session: Session,
        buffer: OutputBuffer,
        events: ChangeEvents,
        bookmark: Bookmark,
        tables: Iterable[SourceTable],
        types: TypeCodec,
    ) -> None:
        self._session = session
        self._buffer = buffer
        self._events = events
        self._bookmark = bookmark  # its lsn advances with each commit
        self._keys = {table.oid: table.key for table in tables}
        self._wanted = {table.name for table in tables}
        self._types = types
        self._encoders: dict[int, RowEncoder | None] = {}  # None: a table that is not read
        self._transaction: TransactionBegin | None = None
        self._moment: CommitPoint | None = None
        self._changes = 0  # of this transaction, so far
        self._skip = 0  # how many of them are stored already
        self._seen = bookmark.lsn  # the highest LSN that the server has sent

    async def run(self) -> None:
        """Hand over changes until the connection ends."""
        transport = self._session.transport
        while True:
            if self._buffer.events and self._transaction is None and not transport.ready:
                await self._flush()  # no message is waiting, so nothing more can join the batch now
            kind, payload = await self._session.receive()
            match kind:
                case 0x64:  # d
                    await self._process(payload)
                case 0x45:  # E
                    raise error(payload)
                case 0x63:  # c
                    raise ConnectionLost("the server has ended the replication")
                case _:
                    raise ConnectionLost(
                        f"the server sent the message {chr(kind)!r} instead of changes"
                    )

    async def report(self, every: float, ping_after: float, ping_timeout: float) -> None:
        """Report to the server what is on disk, at least so often; this keeps the session alive.

        It runs beside `run`, which may wait long for the output: the server drops silent readers.
        """
        every = min(every, ping_after, ping_timeout)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every):
                    await self._buffer.moved.wait()
            self._buffer.moved.clear()
            silent = self._session.transport.silent
            if silent > ping_after + ping_timeout:
                self._session.transport.abort(f"the server has said nothing for {silent:.0f} s")
                return
            self._send_status(request_reply=silent > ping_after)
            await asyncio.sleep(_LEAST_PAUSE)

    def _send_status(self, *, request_reply: bool = False) -> None:
        stored = self._buffer.confirmed
        now = int((time.time() - _EPOCH) * 1e6)
        status = _STATUS.pack(b"r", max(self._seen, stored), stored, stored, now, request_reply)
        self._session.transport.send(packet(b"d", status))

    async def _process(self, payload: bytes) -> None:
        if payload[:1] == b"k":
            end, _, reply_requested = _KEEPALIVE.unpack_from(payload, 1)
            if self._transaction is None:
                self._seen = max(self._seen, end)
                self._buffer.passed(end)
            if reply_requested:
                self._send_status()
            return
        if payload[:1] != b"w":
            raise ConnectionLost("the server sent something other than changes")
        match decode(payload[_DATA:]):
            case RowChange() as change:
                encoder = self._encoder(change.relation)
                if encoder is not None and (at := self._due(encoder.table)):
                    await self._add(self._events.change(encoder, change, at, self._changes))
                self._changes += 1
            case TransactionBegin() as begin:
                self._begin(begin)
            case TransactionCommit(end_lsn):
                self._commit(end_lsn)
            case Relation() as relation:
                self._note_relation(relation)
            case Truncate(relations):
                for oid in relations:
                    encoder = self._encoder(oid)
                    if encoder is not None and (at := self._due(encoder.table)):
                        await self._add(
                            self._events.truncate(encoder.table, at, str(self._changes))
                        )
                    self._changes += 1

    def _begin(self, begin: TransactionBegin) -> None:
        self._transaction = begin
        self._moment = CommitPoint(begin.commit_lsn, begin.committed_at, begin.xid)
        self._changes = 0
        partly = self._bookmark.transaction == begin.commit_lsn
        self._skip = self._bookmark.changes if partly else 0

    def _commit(self, end: int) -> None:
        self._transaction = self._moment = None
        self._bookmark = msgspec.structs.replace(self._bookmark, lsn=end, transaction=0, changes=0)
        self._seen = max(self._seen, end)
        self._buffer.passed(end)

    def _note_relation(self, relation: Relation) -> None:
        wanted = relation.oid in self._keys or relation.table in self._wanted
        encoder = (
            RowEncoder(relation, self._types, self._keys.get(relation.oid, ())) if wanted else None
        )
        self._encoders[relation.oid] = encoder

    def _encoder(self, oid: int) -> RowEncoder | None:
        try:
            return self._encoders[oid]
        except KeyError:
            raise ConnectionLost(
                "pgoutput sent a change of a table that it has not described"
            ) from None

    def _due(self, table: str) -> CommitPoint | None:
        """The commit of the next change; None if the change is stored already."""
        if self._moment is None:
            raise ConnectionLost("pgoutput sent a change outside of a transaction")
        done_before = self._changes < self._skip
        in_snapshot = self._moment.lsn < self._bookmark.tables.get(table, 0)
        return None if done_before or in_snapshot else self._moment

    async def _add(self, event: bytes) -> None:
        if not self._buffer.fits(event):
            await self._flush()
        self._buffer.add(event)

    async def _flush(self) -> None:
        bookmark = self._bookmark
        if self._transaction is not None:
            bookmark = msgspec.structs.replace(
                bookmark, transaction=self._transaction.commit_lsn, changes=self._changes
            )
        await self._buffer.flush(bookmark)
