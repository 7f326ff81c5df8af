"""What a sender says besides the events themselves: parameters and headers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import parse_qsl

from millstream.collect.formats.body import encoding_of
from millstream.collect.formats.cloudevents import attributes_in
from millstream.collect.formats.unpacked import BodyRefused
from millstream.collect.intake.intake import Ack
from millstream.pipeline.model import Stream
from millstream.web.problem import Problem

_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_PRINTABLE = re.compile(rb"[\x21-\x7e](?:[\x20-\x7e]{0,998}[\x21-\x7e])?")
_LEVELS: dict[str, tuple[Ack, Ack]] = {  # a stream's delivery → the default, and the least
    "exactly_once": ("log", "local"),
    "at_least_once": ("log", "local"),
    "at_most_once": ("none", "none"),
}
_ACKS: dict[str, Ack] = {"log": "log", "local": "local", "none": "none"}


class Request(NamedTuple):
    """A request's headers, as far as they mean something to us."""

    content_type: str
    announced: int  # bytes of the body; 0: not said
    encoding: str
    traceparent: str
    attributes: dict[str, str]
    correlation: str
    idempotency_key: str
    origin: str = ""  # whose page a browser sends it for


def levels_of(stream: Stream) -> tuple[Ack, tuple[Ack, ...]]:
    """The stream's default acknowledgement, and those that a sender may ask for."""
    default, least = _LEVELS[stream.delivery]
    return default, tuple(ack for ack in _ACKS.values() if ack != "none" or least == "none")


def ack_of(stream: Stream, query: bytes) -> Ack:
    """Which acknowledgement the sender asks for; Problem if there is no such, or it is too weak."""
    default, least = _LEVELS[stream.delivery]
    if not query:
        return default
    asked = _asked(query) or default
    if asked == "none" and least != "none":
        raise Problem(
            409,
            f"stream {stream.name} promises delivery {stream.delivery}, which ack=none cannot "
            "keep: nothing would be on disk; use ack=local or ack=log",
        )
    return asked


@lru_cache(64)
def _asked(query: bytes) -> Ack | None:
    asked = None
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name != "ack":
            raise Problem(400, f"there is no parameter {name[:100]!r}; known: ack")
        if value not in _ACKS:
            raise Problem(
                400, f"ack={value[:100]} is unknown; use ack=log, local or none, or leave it out"
            )
        asked = _ACKS[value]
    return asked


def read_request(headers: Iterable[tuple[bytes, bytes]]) -> Request:
    """The headers of a request; Problem 415 for an encoding that is not read."""
    content_type = encoding = traceparent = correlation = key = origin = ""
    announced, has_attributes = 0, False
    for name, value in headers:
        match name:
            case b"content-type":
                content_type = value.decode("latin-1")
            case b"content-length":
                announced = int(value)  # the parser lets only digits through
            case b"content-encoding":
                encoding = _encoding(value)
            case b"traceparent":
                traceparent = value.decode() if _TRACEPARENT.fullmatch(value) else ""
            case b"correlation-id":
                correlation = _text(name, value)
            case b"idempotency-key":
                key = _text(name, value)
            case b"origin":
                origin = value.decode("latin-1")
            case _ if name.startswith(b"ce-"):
                has_attributes = True
    attributes: dict[str, str] = {}
    if has_attributes:
        try:
            attributes = attributes_in(headers)
        except BodyRefused as refused:
            raise Problem(refused.status, str(refused)) from None
    return Request(
        content_type, announced, encoding, traceparent, attributes, correlation, key, origin
    )


def _encoding(value: bytes) -> str:
    try:
        return encoding_of(value.decode("latin-1"))
    except BodyRefused as refused:
        raise Problem(
            refused.status, str(refused), headers=[(b"accept-encoding", b"gzip, zstd, identity")]
        ) from None


def _text(name: bytes, value: bytes) -> str:
    value = value.strip()
    if not _PRINTABLE.fullmatch(value):
        raise Problem(400, f"header {name.decode()} is not 1 to 1000 characters of printable ASCII")
    return value.decode()
