"""Reads the rows of tables in a snapshot whose LSN is known."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from millstream.connectors.postgres.bookmark import Bookmark
from millstream.connectors.postgres.catalog import CreatedSlot, SourceTable
from millstream.connectors.postgres.change_events import ChangeEvents, CommitPoint, RowEncoder
from millstream.connectors.postgres.output_buffer import OutputBuffer
from millstream.connectors.postgres.protocol.message_codec import ServerError, literal, quoted
from millstream.connectors.postgres.protocol.pgoutput import Relation
from millstream.connectors.postgres.protocol.server_session import Session
from millstream.connectors.postgres.protocol.value_codec import TypeCodec
from millstream.connectors.postgres.start_point import StartPoint
from millstream.connectors.reading.reconnecting_reader import ConnectionLost


async def read_tables(
    session: Session,
    publication: str,
    start: StartPoint,
    slot: CreatedSlot,
    types: TypeCodec,
    events: ChangeEvents,
    buffer: OutputBuffer,
) -> Bookmark:
    """Hand over the rows of `start.to_read` in the snapshot of `slot`; returns the new bookmark."""
    bookmark = start.bookmark
    at = await _begin(session, slot)
    for table in start.to_read:
        if start.again:
            # Rows that were handed over before may be gone or different now.
            buffer.add(events.truncate(table.name, at, f"{table.name}/begin"))
        async for event in read_rows(session, publication, table, types, events, at):
            if not buffer.fits(event):
                await buffer.flush(bookmark)
            buffer.add(event)
        bookmark = replace(bookmark, tables=bookmark.tables | {table.name: slot.lsn})
        await buffer.flush(bookmark)
    await session.query("COMMIT")
    return bookmark


async def _begin(session: Session, slot: CreatedSlot) -> CommitPoint:
    await session.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    await session.query(f"SET TRANSACTION SNAPSHOT {literal(slot.snapshot)}")
    return CommitPoint(slot.lsn, datetime.now(UTC))


async def read_rows(
    session: Session,
    publication: str,
    table: SourceTable,
    types: TypeCodec,
    events: ChangeEvents,
    at: CommitPoint,
) -> AsyncIterator[bytes]:
    """An event for each row of a table that the publication sends."""
    encoder: RowEncoder | None = None
    index = 0
    try:
        async for columns, values in session.rows(await _select(session, publication, table)):
            if encoder is None:
                names, oids = [c.name for c in columns], [c.type for c in columns]
                relation = Relation(table.oid, table.name, tuple(names), tuple(oids), (), False)
                encoder = RowEncoder(relation, types, table.key)
            yield events.row(encoder, values, at, index)
            index += 1
    except ServerError as error:
        remedy = f"; GRANT SELECT ON {table.name} to its user" if error.code == "42501" else ""
        raise ConnectionLost(f"cannot read the table {table.name}: {error}{remedy}") from None


async def _select(session: Session, publication: str, table: SourceTable) -> str:
    """The SELECT for what the publication sends of a table.

    It leaves out generated columns. Since PostgreSQL 15 a publication may also leave out columns
    and rows.
    """
    columns = await session.query(
        "SELECT attname FROM pg_catalog.pg_attribute WHERE attnum > 0 AND NOT attisdropped"
        f" AND attgenerated = '' AND attrelid = {table.oid} ORDER BY attnum"
    )
    names = [name.decode() for (name,) in columns if name]
    where = ""
    [[restricts]] = await session.query(
        "SELECT count(*) FROM pg_catalog.pg_attribute WHERE attname = 'rowfilter'"
        " AND attrelid = 'pg_catalog.pg_publication_tables'::regclass"
    )
    if restricts != b"0":
        schema, _, name = table.name.partition(".")
        published = await session.query(
            "SELECT rowfilter, array_to_json(attnames) FROM pg_catalog.pg_publication_tables"
            f" WHERE pubname = {literal(publication)} AND schemaname = {literal(schema)}"
            f" AND tablename = {literal(name)}"
        )
        for row_filter, attributes in published:
            where = f" WHERE {row_filter.decode()}" if row_filter else ""
            if attributes:
                names = [name for name in names if name in msgspec.json.decode(attributes)]
    return f"SELECT {', '.join(map(quoted, names))} FROM {table.sql}{where}"
