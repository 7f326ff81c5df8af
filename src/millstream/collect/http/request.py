"""Reads the query parameters and headers of a request that sends events."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from millstream.collect.formats.cloudevents import PREFIX, attributes_in
from millstream.collect.formats.compression import encoding_of
from millstream.collect.formats.unpacked import BodyRefused
from millstream.collect.intake.intake import Ack
from millstream.pipeline.model import Stream
from millstream.web.problem import Problem

_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_PRINTABLE = re.compile(rb"[\x21-\x7e](?:[\x20-\x7e]{0,998}[\x21-\x7e])?")
_LEVELS: dict[
    str, tuple[Ack, Ack]
] = {  # by the stream's delivery: the default, and the weakest allowed
    "exactly_once": ("log", "local"),
    "at_least_once": ("log", "local"),
    "at_most_once": ("none", "none"),
}
_ACKS: dict[str, Ack] = {"log": "log", "local": "local", "none": "none"}


class RequestHeaders(NamedTuple):
    """The headers of a request that the collector uses."""

    attributes: dict[str, str]  # CloudEvents attributes
    content_type: str = ""
    content_length: int = 0  # 0: not given
    encoding: str = ""
    traceparent: str = ""
    correlation: str = ""
    idempotency_key: str = ""
    origin: str = ""  # of the web page that a browser sends it for


def levels_of(stream: Stream) -> tuple[Ack, tuple[Ack, ...]]:
    """The stream's default acknowledgement, and those that a sender may request."""
    default, weakest = _LEVELS[stream.delivery]
    return default, tuple(ack for ack in _ACKS.values() if ack != "none" or weakest == "none")


def ack_of(stream: Stream, query: bytes) -> Ack:
    """The acknowledgement that the sender requests; Problem if it is unknown or too weak."""
    default, weakest = _LEVELS[stream.delivery]
    if not query:
        return default
    ack = _requested(query) or default
    if ack == "none" and weakest != "none":
        raise Problem(
            409,
            f"stream {stream.name} promises delivery {stream.delivery}, which ack=none cannot "
            "keep: nothing would be on disk; use ack=local or ack=log",
        )
    return ack


@lru_cache(64)
def _requested(query: bytes) -> Ack | None:
    ack = None
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name != "ack":
            raise Problem(400, f"there is no parameter {name[:100]!r}; known: ack")
        if value not in _ACKS:
            raise Problem(
                400, f"ack={value[:100]} is unknown; use ack=log, local or none, or leave it out"
            )
        ack = _ACKS[value]
    return ack


def _encoding(name: bytes, value: bytes) -> str:
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


def _latin_1(name: bytes, value: bytes) -> str:
    return value.decode("latin-1")


def _number(name: bytes, value: bytes) -> int:
    return int(value)  # the HTTP parser accepts only digits


def _traceparent(name: bytes, value: bytes) -> str:
    return value.decode() if _TRACEPARENT.fullmatch(value) else ""


# Header → field, and how it is read. CloudEvents attributes (PREFIX) are read besides.
HEADERS: Mapping[bytes, tuple[str, Callable[[bytes, bytes], Any]]] = {
    b"content-type": ("content_type", _latin_1),
    b"content-length": ("content_length", _number),
    b"content-encoding": ("encoding", _encoding),
    b"traceparent": ("traceparent", _traceparent),
    b"correlation-id": ("correlation", _text),
    b"idempotency-key": ("idempotency_key", _text),
    b"origin": ("origin", _latin_1),
}


def read_headers(headers: Iterable[tuple[bytes, bytes]]) -> RequestHeaders:
    """Read a request's headers; Problem if one is malformed, 415 for an unknown encoding."""
    fields: dict[str, Any] = {}
    has_attributes = False
    for name, value in headers:
        if (known := HEADERS.get(name)) is not None:
            field, read = known
            fields[field] = read(name, value)
        elif name.startswith(PREFIX):
            has_attributes = True
    attributes: dict[str, str] = {}
    if has_attributes:
        try:
            attributes = attributes_in(headers)
        except BodyRefused as refused:
            raise Problem(refused.status, str(refused)) from None
    return RequestHeaders(attributes, **fields)
