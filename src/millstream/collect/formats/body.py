"""Unpacks a body into events: decompresses, splits, opens envelopes. Deterministic.

An error in one event is reported for that event, here or by the validator. An error in the body as
a whole is `BodyRefused`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from types import MappingProxyType

import msgspec

from millstream.collect.formats import cloudevents, csv
from millstream.collect.formats.compression import decompress
from millstream.collect.formats.unpacked import (
    BodyRefused,
    Limits,
    UnpackedBody,
    line_too_long,
    too_many,
)
from millstream.errors import InvalidEvent
from millstream.schema import Schema
from millstream.schema.nesting import is_deeper

_VALUE = msgspec.json.Decoder(msgspec.Raw)
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_WHITE = b" \t\r\n"
_NO_ATTRIBUTES: Mapping[str, str] = MappingProxyType({})


class BodyFormat(Enum):
    """The format of a body, by its content type."""

    SNIFF = "look"  # JSON or lines, by the content
    LINES = "lines"
    ROWS = "rows"
    EVENT = "CloudEvent"
    BATCH = "CloudEvents"


class UnreadableContentType(BodyRefused):
    """A content type that the collector does not support."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message, status=415, remedy=remedy)


_FORMS = {
    "": BodyFormat.SNIFF,
    "application/json": BodyFormat.SNIFF,
    "text/json": BodyFormat.SNIFF,
    "application/octet-stream": BodyFormat.SNIFF,
    "application/x-ndjson": BodyFormat.LINES,
    "application/ndjson": BodyFormat.LINES,
    "application/jsonl": BodyFormat.LINES,
    "application/x-jsonlines": BodyFormat.LINES,
    "application/json-lines": BodyFormat.LINES,
    "application/json-seq": BodyFormat.LINES,
    "text/csv": BodyFormat.ROWS,
    "application/cloudevents+json": BodyFormat.EVENT,
    "application/cloudevents-batch+json": BodyFormat.BATCH,
}


@lru_cache(maxsize=128)
def format_of(content_type: str | bytes) -> BodyFormat:
    """The format of a content type; UnreadableContentType if it is not supported."""
    text = content_type if isinstance(content_type, str) else content_type.decode("latin-1")
    media, _, parameters = text.partition(";")
    body_format = _FORMS.get(media.strip().lower())
    if body_format is None:
        hint = " (`curl -d` alone does not: add -H 'content-type: application/json')"
        raise UnreadableContentType(
            f"content type {media.strip()[:100]!r} is not supported",
            remedy="send application/json (an object or an array), application/x-ndjson, text/csv, "
            "application/cloudevents+json or application/cloudevents-batch+json"
            + hint
            * media.startswith("application/x-www-form"),
        )
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        given = value.strip().strip('"').lower()
        match name.strip().lower():
            case "charset" if given not in ("utf-8", "utf8", "us-ascii"):
                raise UnreadableContentType(
                    f"charset {given[:50]!r} is not supported", remedy="send UTF-8"
                )
            case "header" if given == "absent":
                raise UnreadableContentType(
                    "CSV without a header is not supported",
                    remedy="name the columns in the first line",
                )
    return body_format


def check_readable(content_type: str, attributes: Mapping[str, str] = _NO_ATTRIBUTES) -> None:
    """BodyRefused (415) if bodies of that content type are not supported."""
    if cloudevents.is_binary(attributes):
        cloudevents.check_content_type(content_type)
    else:
        format_of(content_type)


class Unpacker:
    """Unpacks the bodies of one stream."""

    def __init__(self, schema: Schema, limits: Limits) -> None:
        self._schema = schema
        self._limits = limits
        # A body of this size cannot exceed any limit: an event takes at least one byte, a level of
        # nesting two.
        self._small = min(
            limits.max_events, limits.max_line, limits.max_event, 2 * limits.max_depth
        )

    def unpack(
        self,
        body: bytes,
        content_type: str = "",
        encoding: str = "",
        attributes: Mapping[str, str] = _NO_ATTRIBUTES,
    ) -> UnpackedBody:
        """The body's events, perhaps none; BodyRefused if it cannot be read as a whole.

        `encoding` is gzip, zstd or empty; `attributes` are CloudEvents attributes from the headers.
        """
        limits = self._limits
        if len(body) <= self._small and not encoding and not attributes:
            body_format = format_of(content_type)
            if body_format is BodyFormat.SNIFF or body_format is BodyFormat.LINES:
                return UnpackedBody(split(body, body_format))
        if encoding:
            body = decompress(body, encoding, limits.max_body)
        if attributes and cloudevents.is_binary(attributes):
            unpacked, body_format = (
                cloudevents.binary(body, content_type, attributes),
                BodyFormat.SNIFF,
            )
        else:
            body_format = format_of(content_type)
            unpacked = self._split(body, body_format)
            if len(unpacked.values) > limits.max_events:
                raise too_many(len(unpacked.values), limits)
            if attributes and unpacked.attributes is None:
                cloudevents.attach(unpacked, attributes)
        # Most bodies are too small to hold a large or deep event. But CSV rows become larger as
        # JSON, and base64 hides the content.
        is_converted = body_format is not BodyFormat.SNIFF and body_format is not BodyFormat.LINES
        if is_converted or len(body) > limits.max_event:
            self._check_sizes(unpacked)
        if is_converted or len(body) > 2 * limits.max_depth:
            self._check_depths(unpacked)
        return unpacked

    def _split(self, body: bytes, body_format: BodyFormat) -> UnpackedBody:
        if body_format is BodyFormat.SNIFF:
            return UnpackedBody(split(body, body_format))
        match body_format:
            case BodyFormat.EVENT:
                return cloudevents.structured(body)
            case BodyFormat.BATCH:
                return cloudevents.batched(body, self._limits)
            case BodyFormat.ROWS:
                return csv.rows(body, self._schema, self._limits)
            case BodyFormat.LINES:
                unpacked = UnpackedBody(_lines(body))
                if len(body) > self._limits.max_line:
                    self._check_lines(unpacked)
                return unpacked

    def _check_lines(self, unpacked: UnpackedBody) -> None:
        for index, line in enumerate(unpacked.values):
            if len(line) > self._limits.max_line:
                unpacked.faults[index] = line_too_long(len(line), self._limits)

    def _check_sizes(self, unpacked: UnpackedBody) -> None:
        for index, value in enumerate(unpacked.values):
            if len(value) > self._limits.max_event and index not in unpacked.faults:
                unpacked.faults[index] = InvalidEvent(
                    f"the event has {len(value)} bytes, of at most {self._limits.max_event}",
                    remedy="send a smaller event: store large data elsewhere, and its address in "
                    "the event",
                )

    def _check_depths(self, unpacked: UnpackedBody) -> None:
        most = self._limits.max_depth
        shortest = 2 * most  # deeper nesting needs at least as many brackets
        suspects = [i for i, value in enumerate(unpacked.values) if len(value) > shortest]
        for index in suspects:
            if index not in unpacked.faults and is_deeper(unpacked.values[index], most):
                unpacked.faults[index] = InvalidEvent(
                    f"objects and arrays are nested more than {most} deep", remedy="send it flatter"
                )


def split(body: bytes, body_format: BodyFormat) -> list[bytes]:
    """The bytes of each event; a body that cannot be split is one event, which is then rejected."""
    if body_format is BodyFormat.LINES:
        return _lines(body)
    trimmed = body.strip(_WHITE)
    if trimmed[:1] == b"[":
        try:
            return [bytes(element) for element in _ARRAY.decode(body)]
        except (msgspec.DecodeError, RecursionError):
            return [body]
    if b"\n" in trimmed and _starts_with_a_whole_line(body):
        return _lines(body)
    return [body] if trimmed else []


def _lines(body: bytes) -> list[bytes]:
    # splitlines() would also split at a lone \r. \x1e starts each text of a json-seq (RFC 7464).
    if b"\n" not in body:
        return [line] if (line := body.strip(b" \t\r\x1e")) else []
    return [line for raw in body.split(b"\n") if (line := raw.strip(b" \t\r\x1e"))]


def _starts_with_a_whole_line(body: bytes) -> bool:
    # An object over several lines is one event; lines that are objects are many.
    first = body.lstrip(_WHITE + b"\x1e").split(b"\n", 1)[0]
    try:
        _VALUE.decode(first)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
