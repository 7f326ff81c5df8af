"""A receipt: a signed text by which a sender can look up an accepted event later."""

from __future__ import annotations

import binascii
import hmac
import re
import struct
from functools import lru_cache
from hashlib import blake2b

import msgspec

# flags, received_at, sequence, index, length of the collector's name
_HEAD = struct.Struct(">BQQIB")
_INDEX, _INDEX_AT = struct.Struct(">I"), struct.calcsize(">BQQ")  # in that head
_RECORD = struct.Struct(">IQ")  # partition, offset
_REJECTED, _HAS_RECORD, _FORMAT = 1, 2, 0x20
_MAC = 15  # bytes of the signature: 120 bits cannot be guessed
_TO_URL = bytes.maketrans(b"+/", b"-_")
_FROM_URL = bytes.maketrans(b"-_", b"+/")
_URL_TEXT = re.compile(r"[A-Za-z0-9_-]{1,1000}")


class Receipt(msgspec.Struct, frozen=True):
    """Identifies an event by collector and sequence number, and by its record if that was known."""

    collector: str
    sequence: int  # of its journal entry
    index: int  # in that entry
    stream: str
    received_at: int  # milliseconds since the epoch; the record's timestamp
    partition: int | None = None
    offset: int | None = None
    rejected: bool = False  # known to be in the rejected topic


class Receipts:
    """Writes and reads receipts. All collectors of a cluster share the key."""

    def __init__(self, key: bytes) -> None:
        # BLAKE2's keyed mode (RFC 7693) needs one pass, HMAC needs two.
        self._keyed = blake2b(key=key, digest_size=_MAC)

    def write(self, receipt: Receipt) -> str:
        """The receipt as text that fits into a URL. It is opaque: its format may change."""
        return self._sign(self._pack(receipt))

    def write_all(self, first: Receipt, count: int) -> list[str]:
        """The receipts of `count` consecutive events of one entry, starting with the first."""
        written = self._pack(first)
        before, after = written[:_INDEX_AT], written[_INDEX_AT + _INDEX.size :]
        indexes = range(first.index, first.index + count)
        return [self._sign(before + _INDEX.pack(index) + after) for index in indexes]

    def read(self, text: str) -> Receipt | None:
        """The receipt in a text; None if no collector of this cluster wrote it."""
        if not _URL_TEXT.fullmatch(text):
            return None
        try:
            signed = binascii.a2b_base64(
                text.encode().translate(_FROM_URL) + b"=" * (-len(text) % 4), strict_mode=True
            )
        except binascii.Error:
            return None
        packed = signed[:-_MAC]
        # Compare the whole text: different base64 texts can mean the same bytes.
        if not hmac.compare_digest(self._sign(packed), text):
            return None
        return _unpack(packed)

    def _pack(self, receipt: Receipt) -> bytes:
        length, names = _names(receipt.collector, receipt.stream)
        flags = _FORMAT | _REJECTED * receipt.rejected
        record = b""
        if receipt.partition is not None and receipt.offset is not None:
            flags |= _HAS_RECORD
            record = _RECORD.pack(receipt.partition, receipt.offset)
        head = _HEAD.pack(flags, receipt.received_at, receipt.sequence, receipt.index, length)
        return head + record + names

    def _sign(self, packed: bytes) -> str:
        keyed = self._keyed.copy()
        keyed.update(packed)
        text = binascii.b2a_base64(packed + keyed.digest(), newline=False)
        return text.translate(_TO_URL, b"=").decode()


@lru_cache(256)
def _names(collector: str, stream: str) -> tuple[int, bytes]:
    """The length of the collector's name, and the names of collector and stream."""
    first = collector.encode()
    return len(first), first + stream.encode()


def _unpack(packed: bytes) -> Receipt | None:
    flags, received_at, sequence, index, length = _HEAD.unpack_from(packed)
    if flags & ~(_REJECTED | _HAS_RECORD) != _FORMAT:
        return None  # signed by a version that uses another format
    at, partition, offset = _HEAD.size, None, None
    if flags & _HAS_RECORD:
        partition, offset = _RECORD.unpack_from(packed, at)
        at += _RECORD.size
    return Receipt(
        collector=packed[at : at + length].decode(),
        sequence=sequence,
        index=index,
        stream=packed[at + length :].decode(),
        received_at=received_at,
        partition=partition,
        offset=offset,
        rejected=bool(flags & _REJECTED),
    )
