"""A raw message: one HTTP body or source message as it was received. The journal stores these."""

from __future__ import annotations

import msgspec

from millstream.errors import MillstreamError

_SMALL = 64 << 10  # bytes of a body that is unpacked without yielding to the loop


class RawMessage(msgspec.Struct, array_like=True, frozen=True):
    """Raw bytes that hold 1 to n events, with all that is needed to unpack them again."""

    stream: str
    received_at: int  # milliseconds since the epoch; never less than that of an earlier message
    body: bytes
    content_type: str = ""
    encoding: str = ""  # gzip or zstd
    source: str = ""  # the address of the source that it was read from; empty: it was posted
    traceparent: str = ""
    attributes: dict[str, str] = {}  # CloudEvents attributes of a body that is one event
    correlation: str = ""
    idempotency_key: str = ""
    sampled_rate: float = (
        1.0  # the share of events that is kept under pressure; does not apply to `spared`
    )
    sender: str = ""  # the authenticated caller, if there is an idempotency key
    # Indexes of events in the body. Decided once, before the message is written to disk.
    duplicates: tuple[int, ...] = ()  # received before: not sent again
    shed: tuple[int, ...] = ()  # dropped under pressure
    spared: tuple[int, ...] = ()  # exempt from shedding


class MessageHead(msgspec.Struct, array_like=True, frozen=True):
    """The first fields of a RawMessage: cheaper to decode than all of it."""

    stream: str
    received_at: int


class UnreadableMessage(MillstreamError):
    """A journal entry that does not decode as a message: another version wrote it."""


encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RawMessage).decode
_decode_head = msgspec.msgpack.Decoder(MessageHead).decode
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError)


def decode(payload: bytes) -> RawMessage:
    """Decode the payload of a journal entry; UnreadableMessage if that fails."""
    try:
        return _decode(payload)
    except _UNREADABLE as error:
        raise UnreadableMessage(f"cannot decode a journal entry as a message: {error}") from None


def decode_head(payload: bytes) -> MessageHead | None:
    """The stream and time of receipt; None if the payload cannot be decoded."""
    try:
        return _decode_head(payload)
    except _UNREADABLE:
        return None


def is_small(message: RawMessage) -> bool:
    """Whether unpacking takes so little time that it needs no thread."""
    return len(message.body) <= _SMALL and not message.encoding
