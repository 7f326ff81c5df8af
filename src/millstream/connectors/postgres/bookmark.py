"""Where a reader is: the note that is stored with the events."""

from __future__ import annotations

import msgspec

from millstream.connectors.reading.reconnecting_reader import ConnectionLost


class Bookmark(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything up to here is on disk."""

    system: str  # the server's identifier: places in another server's log mean nothing here
    slot: str
    lsn: int  # the end of the last transaction that is in as a whole
    # The tables whose snapshot is in, and the place in the log that it shows; changes committed
    # before it are in the snapshot already. 0 for a table without a snapshot.
    tables: dict[str, int]
    # Of a transaction that is in as a part: where it was committed, and how many changes are in.
    transaction: int = 0
    changes: int = 0

    def write(self) -> bytes:
        """As bytes."""
        return msgspec.json.encode(self)

    @classmethod
    def read(cls, stored: bytes | None) -> Bookmark | None:
        """What `write` wrote."""
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
