"""The events in a body: a JSON object, an array of them, or one a line."""

from __future__ import annotations

from enum import Enum

import msgspec

from millstream.errors import MillstreamError

_VALUE = msgspec.json.Decoder(msgspec.Raw)
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_WHITE = b" \t\r\n"


class Form(Enum):
    """What a body's content type says about it."""

    SNIFF = "look"
    LINES = "lines"


class UnreadableContentType(MillstreamError):
    """A content type that the collector does not read."""


_FORMS = {
    "": Form.SNIFF,
    "application/json": Form.SNIFF,
    "text/json": Form.SNIFF,
    "application/octet-stream": Form.SNIFF,
    "application/x-ndjson": Form.LINES,
    "application/ndjson": Form.LINES,
    "application/jsonl": Form.LINES,
    "application/x-jsonlines": Form.LINES,
    "application/json-lines": Form.LINES,
    "application/json-seq": Form.LINES,
}
_known: dict[bytes, Form] = {}  # content types as they were written, so that each is parsed once


def form_of(content_type: bytes) -> Form:
    """The form that a content type promises; UnreadableContentType names those that are read."""
    form = _known.get(content_type)
    if form is None:
        form = _parse_content_type(content_type.decode("latin-1"))
        if len(_known) < 100:  # what senders write must not grow without bound here
            _known[content_type] = form
    return form


def _parse_content_type(text: str) -> Form:
    media, _, parameters = text.partition(";")
    form = _FORMS.get(media.strip().lower())
    if form is None:
        raise UnreadableContentType(
            f"content type {media.strip()[:100]!r} is not read here",
            remedy="send application/json (an object or an array) or application/x-ndjson",
        )
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        charset = value.strip().strip('"').lower()
        if name.strip().lower() == "charset" and charset not in ("utf-8", "utf8", "us-ascii"):
            raise UnreadableContentType(
                f"charset {charset[:50]!r} is not read here", remedy="send UTF-8"
            )
    return form


def split(body: bytes, form: Form) -> list[bytes]:
    """Each event's bytes, as they came; what cannot be split is one, for the check to refuse."""
    if form is Form.LINES:
        return _lines(body)
    trimmed = body.strip(_WHITE)
    if trimmed[:1] == b"[":
        try:
            return [bytes(element) for element in _ARRAY.decode(body)]
        except msgspec.DecodeError:
            return [body]
    if b"\n" in trimmed and _starts_with_a_whole_line(body):
        return _lines(body)
    return [body] if trimmed else []


def _lines(body: bytes) -> list[bytes]:
    # Only \n separates: splitlines() would also cut at a lone \r. A \x1e starts each text of a
    # json-seq (RFC 7464).
    return [line for raw in body.split(b"\n") if (line := raw.strip(b" \t\r\x1e"))]


def _starts_with_a_whole_line(body: bytes) -> bool:
    # An object printed over several lines is one event; lines that are each an object are many.
    first = next(iter(_lines(body)), b"")
    try:
        _VALUE.decode(first)
    except msgspec.DecodeError:
        return False
    return True
