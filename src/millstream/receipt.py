"""A receipt: what a sender keeps of an event, to ask later where it is."""

from __future__ import annotations

import binascii
import hmac
import re
import struct
from hashlib import sha256

import msgspec

_HEAD = struct.Struct(
    ">BQQIB"
)  # kind, received_at, sequence, index, length of the collector's name
_INDEX, _INDEX_AT = struct.Struct(">I"), struct.calcsize(">BQQ")  # in that head
_PLACE = struct.Struct(">IQ")  # partition, offset
_REJECTED, _PLACED, _FORM = 1, 2, 0x10
_MAC = 15  # bytes of the HMAC that are kept: 120 bits, beyond guessing
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
        # HMAC-SHA-256 (RFC 2104) begun: going on from here costs a third of hmac.digest.
        padded = key.ljust(sha256().block_size, b"\0")
        self._inner = sha256(bytes(byte ^ 0x36 for byte in padded))
        self._outer = sha256(bytes(byte ^ 0x5C for byte in padded))

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
        collector = receipt.collector.encode()
        kind = _FORM | _REJECTED * receipt.rejected
        place = b""
        if receipt.partition is not None and receipt.offset is not None:
            kind |= _PLACED
            place = _PLACE.pack(receipt.partition, receipt.offset)
        head = _HEAD.pack(
            kind, receipt.received_at, receipt.sequence, receipt.index, len(collector)
        )
        return head + place + collector + receipt.stream.encode()

    def _sign(self, packed: bytes) -> str:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(packed)
        outer.update(inner.digest())
        text = binascii.b2a_base64(packed + outer.digest()[:_MAC], newline=False)
        return text.translate(_TO_URL).rstrip(b"=").decode()


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
