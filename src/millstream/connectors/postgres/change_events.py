"""Encodes changes and rows as CloudEvents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from millstream.connectors.postgres.protocol.message_codec import lsn_text
from millstream.connectors.postgres.protocol.pgoutput import Relation, RowChange, Unchanged, Value
from millstream.connectors.postgres.protocol.value_codec import TypeCodec

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class CommitPoint:
    """When something was committed; a snapshot has no transaction id."""

    lsn: int
    at: datetime
    xid: int | None = None

    def texts(self) -> tuple[str, str, str]:
        """LSN, time and transaction id as in JSON, the first two without quotes."""
        at = self.at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        return lsn_text(self.lsn), at, "null" if self.xid is None else str(self.xid)


class RowEncoder:
    """Encodes rows of one table as JSON."""

    def __init__(self, relation: Relation, types: TypeCodec, key: Sequence[str] = ()) -> None:
        self.table = relation.table
        self.columns = relation.columns
        self._names = [_encode(name) + b":" for name in relation.columns]
        self._convert = [types.convert(oid) for oid in relation.types]
        # The primary key if it is known; else the replica identity, unless that is all columns.
        indexes = [i for i, name in enumerate(relation.columns) if name in key]
        self.key = indexes or ([] if relation.full else list(relation.key))
        self.identity = relation.key

    def row(self, values: Sequence[Value], indexes: Sequence[int] | None = None) -> bytes:
        """The columns at `indexes` (default: all) as a JSON object, without unchanged values."""
        return b"{%s}" % b",".join(
            self._names[i] + (b"null" if value is None else self._convert[i](value))
            for i in (range(len(self._names)) if indexes is None else indexes)
            if not isinstance(value := values[i], Unchanged)
        )

    def key_text(self, values: Sequence[Value]) -> bytes:
        """The key's values as a JSON array inside a JSON string: a stream's key is one text."""
        parts = [
            b"null" if value is None or isinstance(value, Unchanged) else self._convert[i](value)
            for i in self.key
            for value in [values[i]]
        ]
        return _encode(f"[{b','.join(parts).decode()}]") if parts else b"null"


class ChangeEvents:
    """Encodes the events of one source. `index` counts within a transaction or a snapshot."""

    def __init__(self, slot: str, address: str) -> None:
        self._slot = slot
        self._source = _encode(address).decode()

    def change(
        self, encoder: RowEncoder, change: RowChange, moment: CommitPoint, index: int
    ) -> bytes:
        """The event for a row's insert, update or delete."""
        before, after, more = b"null", b"null", b""
        known: Sequence[Value] = change.new or change.old or ()
        if change.old is not None:
            before = encoder.row(change.old, encoder.identity if change.old_is_key else None)
        elif change.op == "update":
            # The key did not change: else `old` would be set.
            before = encoder.row(known, encoder.identity)
        if change.new is not None:
            after, more = self._after(encoder, change)
        key = encoder.key_text(known)
        return self._event(change.op, encoder.table, key, before, after, moment, str(index), more)

    def row(
        self, encoder: RowEncoder, values: Sequence[Value], moment: CommitPoint, index: int
    ) -> bytes:
        """The event for a row of a snapshot."""
        key, after = encoder.key_text(values), encoder.row(values)
        number = f"{encoder.table}/{index}"
        return self._event("snapshot", encoder.table, key, b"null", after, moment, number)

    def truncate(self, table: str, moment: CommitPoint, number: str) -> bytes:
        """The event for a table that is now empty."""
        return self._event("truncate", table, b"null", b"null", b"null", moment, number)

    def _after(self, encoder: RowEncoder, change: RowChange) -> tuple[bytes, bytes]:
        new = list(change.new or ())
        whole = change.old if change.old is not None and not change.old_is_key else None
        missing = [i for i, value in enumerate(new) if isinstance(value, Unchanged)]
        if whole is not None:  # the old row has the unchanged value
            for i in missing:
                new[i] = whole[i]
            missing = []
        if not missing:
            return encoder.row(new), b""
        return encoder.row(new), b',"unchanged":' + _encode([encoder.columns[i] for i in missing])

    def _event(
        self,
        op: str,
        table: str,
        key: bytes,
        before: bytes,
        after: bytes,
        moment: CommitPoint,
        number: str,
        more: bytes = b"",
    ) -> bytes:
        lsn, at, xid = moment.texts()
        name = _encode(table).decode()
        head = (
            f'{{"specversion":"1.0","id":{_encode(f"{self._slot}/{lsn}/{number}").decode()},'
            f'"source":{self._source},"type":"postgres.{op}","subject":{name},"time":"{at}",'
            f'"datacontenttype":"application/json","data":{{"op":"{op}","table":{name},"key":'
        )
        tail = f',"lsn":"{lsn}","xid":{xid},"committed_at":"{at}"}}}}'
        parts = (head.encode(), key, b',"before":', before, b',"after":', after, more)
        return b"".join(parts) + tail.encode()
