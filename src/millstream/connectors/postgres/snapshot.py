"""Reads the rows of tables in a snapshot whose LSN is known."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
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
    connection: Session,
    publication: str,
    start: StartPoint,
    slot: CreatedSlot,
    types: TypeCodec,
    events: ChangeEvents,
    buffer: OutputBuffer,
    received: Callable[[int], None],
) -> Bookmark:
    """Hand over the rows of `start.to_read` in the snapshot of `slot`; returns the new bookmark."""
    bookmark = start.bookmark
    at = await _begin(connection, slot)
    for table in start.to_read:
        if start.again:
            # Rows that were handed over before may be gone or different now.
            buffer.add(events.truncate(table.name, at, f"{table.name}/begin"))
        async for event in read_rows(connection, publication, table, types, events, at):
            if not buffer.fits(event):
                received(await buffer.flush(bookmark))
            buffer.add(event)
        bookmark = replace(bookmark, tables=bookmark.tables | {table.name: slot.lsn})
        received(await buffer.flush(bookmark))
    await connection.query("COMMIT")
    return bookmark


async def _begin(connection: Session, slot: CreatedSlot) -> CommitPoint:
    await connection.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    await connection.query(f"SET TRANSACTION SNAPSHOT {literal(slot.snapshot)}")
    return CommitPoint(slot.lsn, datetime.now(UTC))


async def read_rows(
    connection: Session,
    publication: str,
    table: SourceTable,
    types: TypeCodec,
    events: ChangeEvents,
    at: CommitPoint,
) -> AsyncIterator[bytes]:
    """An event for each row of a table that the publication sends."""
    shape: RowEncoder | None = None
    index = 0
    try:
        async for columns, values in connection.rows(await _select(connection, publication, table)):
            if shape is None:
                names, oids = [c.name for c in columns], [c.type for c in columns]
                relation = Relation(table.oid, table.name, tuple(names), tuple(oids), (), False)
                shape = RowEncoder(relation, types, table.key)
            yield events.row(shape, values, at, index)
            index += 1
    except ServerError as error:
        remedy = f"; GRANT SELECT ON {table.name} to its user" if error.code == "42501" else ""
        raise ConnectionLost(f"cannot read the table {table.name}: {error}{remedy}") from None


async def _select(connection: Session, publication: str, table: SourceTable) -> str:
    """The SELECT for what the publication sends of a table.

    It leaves out generated columns. Since PostgreSQL 15 a publication may also leave out columns
    and rows.
    """
    columns = await connection.query(
        "SELECT attname FROM pg_catalog.pg_attribute WHERE attnum > 0 AND NOT attisdropped"
        f" AND attgenerated = '' AND attrelid = {table.oid} ORDER BY attnum"
    )
    names = [name.decode() for (name,) in columns if name]
    where = ""
    [[restricts]] = await connection.query(
        "SELECT count(*) FROM pg_catalog.pg_attribute WHERE attname = 'rowfilter'"
        " AND attrelid = 'pg_catalog.pg_publication_tables'::regclass"
    )
    if restricts != b"0":
        schema, _, name = table.name.partition(".")
        published = await connection.query(
            "SELECT rowfilter, array_to_json(attnames) FROM pg_catalog.pg_publication_tables"
            f" WHERE pubname = {literal(publication)} AND schemaname = {literal(schema)}"
            f" AND tablename = {literal(name)}"
        )
        for row_filter, attributes in published:
            where = f" WHERE {row_filter.decode()}" if row_filter else ""
            if attributes:
                names = [name for name in names if name in msgspec.json.decode(attributes)]
    return f"SELECT {', '.join(map(quoted, names))} FROM {table.sql}{where}"
