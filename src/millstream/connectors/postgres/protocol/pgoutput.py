"""Decodes the messages of PostgreSQL's output plugin `pgoutput` (version 1)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from millstream.connectors.reading.reconnecting_reader import ConnectionLost

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_BEGIN = struct.Struct("!QqI")
_COMMIT = struct.Struct("!BQQq")
_OID = struct.Struct("!I")
_COUNT = struct.Struct("!h")
_COLUMN = struct.Struct("!Ii")
_TRUNCATE = struct.Struct("!iB")


class Unchanged:
    """A value that is stored outside of its row (TOAST) and was not changed."""


UNCHANGED = Unchanged()
Value = bytes | None | Unchanged


@dataclass(frozen=True, slots=True)
class TransactionBegin:
    """The start of a transaction."""

    commit_lsn: int
    committed_at: datetime
    xid: int


@dataclass(frozen=True, slots=True)
class TransactionCommit:
    """The end of a transaction."""

    end_lsn: int  # where to resume after this transaction


@dataclass(frozen=True, slots=True)
class Relation:
    """A table's columns; sent before its first change, and after each ALTER."""

    oid: int
    table: str
    columns: tuple[str, ...]
    types: tuple[int, ...]
    key: tuple[int, ...]  # the columns of its replica identity
    full: bool  # the replica identity is the whole row


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row's change. `old` is the whole row before, or its key's columns, or None."""

    op: str
    relation: int
    old: list[Value] | None
    new: list[Value] | None
    old_is_key: bool = False


@dataclass(frozen=True, slots=True)
class Truncate:
    relations: tuple[int, ...]


Message = TransactionBegin | TransactionCommit | Relation | RowChange | Truncate | None


def instant(microseconds: int) -> datetime:
    """A time from PostgreSQL's microseconds. OverflowError if it is out of range."""
    return _EPOCH + timedelta(microseconds=microseconds)


def decode(data: bytes) -> Message:
    """A message; None for a kind that is not used here.

    ConnectionLost, struct.error, IndexError or ValueError if it cannot be decoded.
    """
    match chr(data[0]):
        case "I":
            new, _ = _row(data, _expect(data, 5, b"N"))
            return RowChange("insert", _OID.unpack_from(data, 1)[0], None, new)
        case "U":
            return _update(data)
        case "D":
            old, _ = _row(data, _expect(data, 5, b"KO"))
            return RowChange("delete", _OID.unpack_from(data, 1)[0], old, None, data[5:6] == b"K")
        case "B":
            lsn, at, xid = _BEGIN.unpack_from(data, 1)
            return TransactionBegin(lsn, instant(at), xid)
        case "C":
            return TransactionCommit(_COMMIT.unpack_from(data, 1)[2])
        case "R":
            return _relation(data)
        case "T":
            count, _ = _TRUNCATE.unpack_from(data, 1)
            return Truncate(struct.unpack_from(f"!{count}I", data, 6))
        case "Y" | "O" | "M":
            return None  # Type, Origin, Message
        case other:
            raise ConnectionLost(f"pgoutput sent a message {other!r} that is not known here")


def _expect(data: bytes, at: int, kinds: bytes) -> int:
    if data[at] not in kinds:
        raise ConnectionLost("pgoutput sent a change that cannot be read")
    return at + 1


def _update(data: bytes) -> RowChange:
    oid, kind, old, at = _OID.unpack_from(data, 1)[0], data[5:6], None, 5
    if kind in (b"K", b"O"):
        old, at = _row(data, 6)
    new, _ = _row(data, _expect(data, at, b"N"))
    return RowChange("update", oid, old, new, kind == b"K")


def _row(data: bytes, at: int) -> tuple[list[Value], int]:
    values: list[Value] = []
    count = _COUNT.unpack_from(data, at)[0]
    at += 2
    for _ in range(count):
        kind = data[at]
        at += 1
        if kind == 0x74:  # t: text
            end = at + 4 + _OID.unpack_from(data, at)[0]
            if end > len(data):
                raise ConnectionLost("pgoutput sent a value that is cut short")
            values.append(data[at + 4 : end])
            at = end
        elif kind == 0x6E:  # n: null
            values.append(None)
        elif kind == 0x75:  # u: unchanged
            values.append(UNCHANGED)
        else:
            raise ConnectionLost(
                f"pgoutput sent a value of kind {chr(kind)!r} that is not known here"
            )
    return values, at


def _relation(data: bytes) -> Relation:
    oid = _OID.unpack_from(data, 1)[0]
    schema, at = _text(data, 5)
    name, at = _text(data, at)
    full = data[at : at + 1] == b"f"
    count = _COUNT.unpack_from(data, at + 1)[0]
    at += 3
    names: list[str] = []
    types: list[int] = []
    key: list[int] = []
    for index in range(count):
        if data[at] & 1:
            key.append(index)
        column, at = _text(data, at + 1)
        names.append(column)
        types.append(_COLUMN.unpack_from(data, at)[0])
        at += _COLUMN.size
    return Relation(
        oid, f"{schema or 'pg_catalog'}.{name}", tuple(names), tuple(types), tuple(key), full
    )


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\0", at)
    return data[at:end].decode(), end + 1
