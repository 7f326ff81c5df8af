"""The position of a reader, stored with the events."""

from __future__ import annotations

import msgspec

from millstream.connectors.reading.reconnecting_reader import ConnectionLost


class Bookmark(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything up to this position is on disk."""

    system: str  # the server's identifier: an LSN is valid on one server only
    slot: str
    lsn: int  # the end of the last transaction that is stored completely
    # The tables whose snapshot is stored, and its LSN: changes committed before it are in the
    # snapshot. 0 for a table without a snapshot.
    tables: dict[str, int]
    # Of a transaction that is stored partly: its commit LSN, and how many changes are stored.
    transaction: int = 0
    changes: int = 0

    def write(self) -> bytes:
        """The bookmark as bytes."""
        return msgspec.json.encode(self)

    @classmethod
    def read(cls, stored: bytes | None) -> Bookmark | None:
        """The bookmark that `write` wrote."""
        if stored is None:
            return None
        try:
            return _decode(stored)
        except msgspec.DecodeError:
            raise ConnectionLost(
                "the bookmark of this source cannot be read; was the stream read from something "
                "else before? Give the stream another name, or the collector a new home"
            ) from None


_decode = msgspec.json.Decoder(Bookmark).decode
