"""An arrival: one body or message as it came, which is what the journal keeps."""

from __future__ import annotations

import msgspec

from millstream.errors import MillstreamError

_SMALL = 64 << 10  # bytes of a body that is unpacked at once


class Arrival(msgspec.Struct, array_like=True, frozen=True):
    """Raw bytes with 1 to n events in them, and all that is needed to unpack them again."""

    stream: str
    received_at: int  # milliseconds since the epoch; never less than that of an earlier arrival
    body: bytes
    content_type: str = ""
    encoding: str = ""  # gzip or zstd
    source: str = ""  # the address of the source that it was read from; empty: someone posted it
    traceparent: str = ""
    attributes: dict[str, str] = {}  # CloudEvents attributes of a body that is one event
    correlation: str = ""
    idempotency_key: str = ""
    sampled_rate: float = 1.0  # the share of events like these that is kept; not of the spared
    sender: str = ""  # who was authenticated, if that matters
    # Decided once, before it was on disk; the events' places in the body.
    duplicates: tuple[int, ...] = ()  # handed in before: not sent again
    shed: tuple[int, ...] = ()  # dropped under pressure
    spared: tuple[int, ...] = ()  # could not have been shed: they matter


class Glimpse(msgspec.Struct, array_like=True, frozen=True):
    """An arrival's first fields, for those who need no more."""

    stream: str
    received_at: int


class UnreadableArrival(MillstreamError):
    """A journal's entry that is no arrival: another version of us wrote it."""


encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Arrival).decode
_glimpse = msgspec.msgpack.Decoder(Glimpse).decode
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError)


def decode(payload: bytes) -> Arrival:
    """The arrival that an entry of the journal holds; UnreadableArrival if it is none."""
    try:
        return _decode(payload)
    except _UNREADABLE as error:
        raise UnreadableArrival(f"an entry of the journal is no arrival: {error}") from None


def glimpse(payload: bytes) -> Glimpse | None:
    """Its stream and time; None if the entry is no arrival."""
    try:
        return _glimpse(payload)
    except _UNREADABLE:
        return None


def is_small(arrival: Arrival) -> bool:
    """Whether to unpack it takes no time to speak of."""
    return len(arrival.body) <= _SMALL and not arrival.encoding
