"""Decides where to resume, from what is on disk and what the server still has."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.connectors.postgres import catalog
from millstream.connectors.postgres.bookmark import Bookmark
from millstream.connectors.postgres.catalog import ReplicationSlot, ServerInfo, SourceTable
from millstream.connectors.postgres.description import PostgresSource
from millstream.connectors.postgres.protocol.message_codec import lsn_text
from millstream.connectors.postgres.protocol.server_session import Session
from millstream.connectors.reading.reconnecting_reader import ConnectionLost


@dataclass(frozen=True, slots=True)
class StartPoint:
    """Where to start. `bookmark.lsn` is where the slot resumes, or 0 if it does not exist yet."""

    server: ServerInfo
    bookmark: Bookmark
    tables: list[SourceTable]
    to_read: list[SourceTable]  # the tables that need a snapshot
    again: bool  # some of their rows may have been read before
    lost: str  # why everything must be read again; the old slot still exists


async def find_start_point(
    session: Session, stream: str, source: PostgresSource, note: Bookmark | None
) -> StartPoint:
    """Find the start, and create the publication if needed. ConnectionLost if that fails."""
    slot_name, publication = source.slot_of(stream), source.publication_of(stream)
    server = await catalog.inspect_server(session)
    tables = await catalog.find_tables(session, source.tables)
    present = await catalog.published_tables(session, publication)
    slot = await catalog.find_slot(session, slot_name)
    again = note is not None or slot is not None
    lost = _what_is_lost(note, slot, server, slot_name, publication if present is None else "")
    if lost:
        if source.on_lost == "stop":
            raise ConnectionLost(
                f"{lost}; to read the tables again, set on_lost='snapshot' on the source"
            )
        return StartPoint(
            server, Bookmark(server.system, slot_name, 0, {}), tables, tables, True, lost
        )
    if slot is not None and present is None:
        # A slot sees the publications as of its LSN: not one that is created later.
        await catalog.drop_slot(session, slot_name)
        slot = None
    await catalog.ensure_published(session, publication, tables, present)
    read = note.tables if note is not None else {}
    if not source.snapshot:
        read = dict.fromkeys((table.name for table in tables), 0) | read
    to_read = [table for table in tables if table.name not in read]
    bookmark = _bookmark(note, slot, server, slot_name, read)
    return StartPoint(server, bookmark, tables, to_read, again, "")


def _bookmark(
    note: Bookmark | None,
    slot: ReplicationSlot | None,
    server: ServerInfo,
    name: str,
    read: dict[str, int],
) -> Bookmark:
    if slot is None:
        return Bookmark(server.system, name, 0, read)
    if note is None:
        return Bookmark(server.system, name, slot.confirmed, read)
    # The slot may be ahead of the bookmark: it advances without one while no change concerns us,
    # and only what is on disk is confirmed, here or by another collector.
    lsn = max(note.lsn, slot.confirmed)
    return Bookmark(server.system, name, lsn, read, note.transaction, note.changes)


def _what_is_lost(
    note: Bookmark | None,
    slot: ReplicationSlot | None,
    server: ServerInfo,
    name: str,
    no_publication: str,
) -> str:
    """Why the changes since the bookmark are gone; empty if they are available."""
    if slot is not None and slot.lost:
        why = (
            f"the server has invalidated the slot {name}, which was too far behind for its "
            "max_slot_wal_keep_size"
        )
        return f"{why}: {_since(note)}"
    if note is None or not note.lsn:  # nothing was read yet
        return ""
    if note.system != server.system:
        why = "this is not the server that was read until now"
    elif note.slot != name:
        why = f"the slot was {note.slot} until now, not {name}"
    elif slot is None:
        why = f"the slot {name} is gone from the server"
    elif no_publication:
        why = f"the publication {no_publication} is gone from the server"
    elif note.lsn > server.end:
        why = "the server has gone back to an earlier state, as from a backup"
    else:
        return ""
    return f"{why}: {_since(note)}"


def _since(note: Bookmark | None) -> str:
    start = lsn_text(note.lsn) if note is not None else "the slot was created"
    return f"the changes since {start} are lost"
