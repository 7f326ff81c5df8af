"""Reads and creates what replication needs on the server: tables, publication, slot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from millstream.connectors.postgres.protocol.message_codec import (
    ServerError,
    literal,
    lsn_number,
    quoted,
)
from millstream.connectors.postgres.protocol.server_session import Session
from millstream.connectors.postgres.protocol.value_codec import TypeCodec
from millstream.connectors.reading.reconnecting_reader import ConnectionLost

_OLDEST = 130000
_KIND_PARTITIONED = b"p"
OBJECT_IN_USE = "55006"


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The server's identity, version and state."""

    system: str
    version: int
    sender_timeout: float  # seconds after which it drops a silent reader; 0: never
    end: int  # the LSN at the end of its log


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table to read. `sql` is its name in a query, with the rows that the publication sends."""

    name: str
    oid: int
    sql: str
    key: tuple[str, ...]
    identified: bool  # if published, its rows can still be updated and deleted


@dataclass(frozen=True, slots=True)
class ReplicationSlot:
    """The state of a replication slot."""

    confirmed: int
    active: bool
    lost: bool  # the server has deleted changes that we have not read


@dataclass(frozen=True, slots=True)
class CreatedSlot:
    """A new replication slot, with the snapshot at its start."""

    lsn: int
    snapshot: str  # valid until the session that created it runs another command


async def inspect_server(session: Session) -> ServerInfo:
    """Facts about the server. ConnectionLost, with a remedy, if it cannot send changes."""
    [identified] = await session.query("IDENTIFY_SYSTEM")
    system, _, end, _ = _texts(identified)
    [settings] = await session.query(
        "SELECT current_setting('server_version_num'), current_setting('wal_level'),"
        " extract(epoch FROM current_setting('wal_sender_timeout')::interval)"
    )
    version, level, timeout = _texts(settings)
    if int(version) < _OLDEST:
        raise ConnectionLost(
            f"the server is of version {version}; changes are read from PostgreSQL 13 on"
        )
    if level != "logical":
        raise ConnectionLost(
            f"the server's wal_level is {level!r}, so it logs no changes that can be read; "
            "set wal_level = logical there (ALTER SYSTEM SET wal_level = logical) and restart it"
        )
    return ServerInfo(system, int(version), float(timeout), lsn_number(end))


async def find_tables(session: Session, names: Iterable[str]) -> list[SourceTable]:
    """The tables of these names. ConnectionLost if one does not exist."""
    return [await _find(session, name) for name in names]


async def _find(session: Session, name: str) -> SourceTable:
    schema, _, table = name.partition(".")
    path = f"{quoted(schema)}.{quoted(table)}"
    rows = await session.query(
        "SELECT c.oid, c.relkind, c.relreplident, i.indrelid, a.attname"
        " FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " LEFT JOIN pg_catalog.pg_index i ON i.indrelid = c.oid AND CASE c.relreplident"
        " WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END"
        " LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid"
        " AND a.attnum = ANY (i.indkey) AND a.attnum > 0"
        f" WHERE n.nspname = {literal(schema)} AND c.relname = {literal(table)}"
        " AND c.relkind IN ('r', 'p') ORDER BY array_position(i.indkey::int2[], a.attnum)"
    )
    if not rows:
        raise ConnectionLost(
            f"the table {name} does not exist in this database, or is not a table; create it, or "
            "correct the source's tables (schema.table, as PostgreSQL writes them without quotes)"
        )
    oid, kind, identity, indexed, _ = rows[0]
    return SourceTable(
        name,
        int(oid or 0),
        path if kind == _KIND_PARTITIONED else f"ONLY {path}",
        tuple(row[4].decode() for row in rows if row[4]),
        identity == b"f" or (identity != b"n" and indexed is not None),
    )


async def published_tables(session: Session, publication: str) -> set[str] | None:
    """The tables in a publication; None if there is no such publication."""
    name = literal(publication)
    if not await session.query(f"SELECT FROM pg_publication WHERE pubname = {name}"):
        return None
    rows = await session.query(
        f"SELECT schemaname || '.' || tablename FROM pg_publication_tables WHERE pubname = {name}"
    )
    return {text for row in rows for text in _texts(row)}


async def ensure_published(
    session: Session, publication: str, tables: Sequence[SourceTable], present: set[str] | None
) -> None:
    """Create the publication, or add the missing tables to it."""
    missing = [table for table in tables if table.name not in (present or ())]
    if not missing:
        return
    for table in missing:
        if not table.identified:
            # If it were published, the application's own updates and deletes would fail.
            raise ConnectionLost(
                f"the table {table.name} has no primary key, so its changes could not say which "
                f"row they are about; add one, or ALTER TABLE {table.name} REPLICA IDENTITY FULL"
            )
    named = ", ".join(table.sql for table in missing)
    if present is None:
        command = (
            f"CREATE PUBLICATION {quoted(publication)} FOR TABLE {named}"
            " WITH (publish_via_partition_root = true)"
        )
    else:
        command = f"ALTER PUBLICATION {quoted(publication)} ADD TABLE {named}"
    try:
        await session.query(command)
    except ServerError as error:
        raise ConnectionLost(
            f"cannot publish the tables: {error}; let their owner, who needs CREATE on the "
            f"database too, run: {command}"
        ) from None


async def find_slot(session: Session, name: str) -> ReplicationSlot | None:
    """The state of our slot; None if there is none."""
    rows = await session.query(
        "SELECT confirmed_flush_lsn, active, wal_status, slot_type, plugin,"
        " coalesce(database, '') = current_database()"
        f" FROM pg_replication_slots WHERE slot_name = {literal(name)}"
    )
    if not rows:
        return None
    confirmed, active, status, kind, plugin, here = rows[0]
    if kind != b"logical" or plugin != b"pgoutput" or here != b"t":
        raise ConnectionLost(
            f"the slot {name} is not a pgoutput slot of this database; give the source another slot"
        )
    return ReplicationSlot(
        lsn_number(confirmed.decode()) if confirmed else 0,
        active == b"t",
        status == b"lost" or confirmed is None,
    )


async def claim_slot(session: Session, slot: str, before: int) -> None:
    """Lock the slot against other readers until the session ends.

    `before` is the backend of our last session; the server may not know yet that it is dead.
    """
    # An advisory lock, because the slot itself is only locked while it streams, not during a
    # snapshot.
    rows = await session.query(
        f"SELECT pg_try_advisory_lock(hashtext('millstream'), hashtext({literal(slot)}))"
    )
    found = await find_slot(session, slot)
    if rows[0][0] == b"t" and (found is None or not found.active):
        return
    if before:
        await session.query(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = {before}"
            " AND usename = current_user AND application_name = 'millstream'"
        )
    raise ConnectionLost(slot_in_use(slot))


def slot_in_use(slot: str) -> str:
    """The error text when another reader uses the slot."""
    return (
        f"the slot {slot} is in use by another reader; this one takes over when that stops. If "
        "both should read, give each its own slot"
    )


async def create_slot(session: Session, name: str, *, temporary: bool) -> CreatedSlot:
    """Create a slot with a snapshot at its start; waits for the running transactions to end."""
    lasting = "TEMPORARY " if temporary else ""
    try:
        rows = await session.query(
            f"CREATE_REPLICATION_SLOT {quoted(name)} {lasting}LOGICAL pgoutput EXPORT_SNAPSHOT"
        )
    except ServerError as error:
        raise ConnectionLost(f"cannot make the slot {name}: {with_remedy(error)}") from None
    _, lsn, snapshot, _ = _texts(rows[0])
    return CreatedSlot(lsn_number(lsn), snapshot)


async def drop_slot(session: Session, name: str) -> None:
    """Drop a slot; the server then deletes the log that it kept for it."""
    await session.query(f"DROP_REPLICATION_SLOT {quoted(name)} WAIT")


async def load_types(session: Session) -> TypeCodec:
    """The conversions for the types of this database."""
    rows = [[int(text) for text in _texts(row)] for row in await session.query(TypeCodec.QUERY)]
    return TypeCodec([(oid, base, element) for oid, base, element in rows])


def with_remedy(error: ServerError) -> str:
    """A server's error, with a remedy where one is known."""
    remedies = {
        "28P01": "check the user and the password in the source's url",
        "28000": "check the user in the source's url, and pg_hba.conf on the server",
        "3D000": "check the database in the source's url",
        "42501": "let a superuser run: ALTER ROLE … REPLICATION, and GRANT SELECT on the tables",
        "53400": "raise max_replication_slots and max_wal_senders on the server, or drop a slot",
        "53300": "raise max_connections or max_wal_senders on the server",
    }
    remedy = remedies.get(error.code, "")
    return f"{error}; {remedy}" if remedy else str(error)


def _texts(row: Sequence[bytes | None]) -> list[str]:
    return [(value or b"").decode() for value in row]
