"""A receipt: what a sender keeps of an event, to ask later where it is."""

from __future__ import annotations

import binascii
import hmac
import re
import struct
from functools import lru_cache
from hashlib import blake2b

import msgspec

_HEAD = struct.Struct(
    ">BQQIB"
)  # kind, received_at, sequence, index, length of the collector's name
_INDEX, _INDEX_AT = struct.Struct(">I"), struct.calcsize(">BQQ")  # in that head
_PLACE = struct.Struct(">IQ")  # partition, offset
_REJECTED, _PLACED, _FORM = 1, 2, 0x20
_MAC = 15  # bytes of the signature: 120 bits, beyond guessing
_TO_URL = bytes.maketrans(b"+/", b"-_")
_FROM_URL = bytes.maketrans(b"-_", b"+/")
_URL_TEXT = re.compile(r"[A-Za-z0-9_-]{1,1000}")


class Receipt(msgspec.Struct, frozen=True):
    """Which event: the collector's number of it. And its place in the log, if that was known."""

    collector: str
    sequence: int  # of the journal's entry that it came in with
    index: int  # its place in that entry
    stream: str
    received_at: int  # milliseconds since the epoch; the record's timestamp
    partition: int | None = None
    offset: int | None = None
    rejected: bool = False  # known to be in the rejected topic


class Receipts:
    """Writes and reads receipts. The key is the cluster's, so any collector knows any other's."""

    def __init__(self, key: bytes) -> None:
        # BLAKE2's keyed mode (RFC 7693) does with one pass what HMAC does with two.
        self._keyed = blake2b(key=key, digest_size=_MAC)

    def write(self, receipt: Receipt) -> str:
        """The receipt as text that fits into a URL. Opaque: its form may change."""
        return self._sign(self._pack(receipt))

    def write_all(self, first: Receipt, count: int) -> list[str]:
        """As `write`, for so many events of one entry, the first one's and those that follow it."""
        written = self._pack(first)
        before, after = written[:_INDEX_AT], written[_INDEX_AT + _INDEX.size :]
        places = range(first.index, first.index + count)
        return [self._sign(before + _INDEX.pack(index) + after) for index in places]

    def read(self, text: str) -> Receipt | None:
        """The receipt that was written as `text`; None for text that no collector gave out."""
        if not _URL_TEXT.fullmatch(text):
            return None
        try:
            signed = binascii.a2b_base64(
                text.encode().translate(_FROM_URL) + b"=" * (-len(text) % 4), strict_mode=True
            )
        except binascii.Error:
            return None
        packed = signed[:-_MAC]
        # The whole text is compared: base64 has texts that differ and mean the same bytes.
        if not hmac.compare_digest(self._sign(packed), text):
            return None
        return _unpack(packed)

    def _pack(self, receipt: Receipt) -> bytes:
        length, names = _names(receipt.collector, receipt.stream)
        kind = _FORM | _REJECTED * receipt.rejected
        place = b""
        if receipt.partition is not None and receipt.offset is not None:
            kind |= _PLACED
            place = _PLACE.pack(receipt.partition, receipt.offset)
        head = _HEAD.pack(kind, receipt.received_at, receipt.sequence, receipt.index, length)
        return head + place + names

    def _sign(self, packed: bytes) -> str:
        keyed = self._keyed.copy()
        keyed.update(packed)
        text = binascii.b2a_base64(packed + keyed.digest(), newline=False)
        return text.translate(_TO_URL, b"=").decode()


@lru_cache(256)
def _names(collector: str, stream: str) -> tuple[int, bytes]:
    """The names of collector and stream in one, and the first one's length."""
    first = collector.encode()
    return len(first), first + stream.encode()


def _unpack(packed: bytes) -> Receipt | None:
    kind, received_at, sequence, index, length = _HEAD.unpack_from(packed)
    if kind & ~(_REJECTED | _PLACED) != _FORM:
        return None  # signed, but by a version that writes another form
    at, partition, offset = _HEAD.size, None, None
    if kind & _PLACED:
        partition, offset = _PLACE.unpack_from(packed, at)
        at += _PLACE.size
    return Receipt(
        collector=packed[at : at + length].decode(),
        sequence=sequence,
        index=index,
        stream=packed[at + length :].decode(),
        received_at=received_at,
        partition=partition,
        offset=offset,
        rejected=bool(kind & _REJECTED),
    )
