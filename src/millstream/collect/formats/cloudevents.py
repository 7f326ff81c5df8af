"""CloudEvents 1.0 over HTTP, in the modes binary (headers), structured (envelope) and batched.

https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any
from urllib.parse import unquote_to_bytes

import msgspec

from millstream.collect.formats.unpacked import BodyRefused, Limits, UnpackedBody, too_many
from millstream.errors import InvalidEvent
from millstream.schema.scalars import Timestamp

PREFIX = b"ce-"
_REQUIRED = ("specversion", "id", "source", "type")
_NEVER_EMPTY = (*_REQUIRED, "subject", "dataschema", "datacontenttype")
_NAME = re.compile(r"[a-z0-9]+", re.ASCII)
_JSON = re.compile(r"[^;/\s]+/(?:[^;/\s]+\+)?json\s*(?:;.*)?", re.IGNORECASE | re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*+)"', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
# Our own headers on the same records. A sender's attribute of that name (`sequence` is a known
# extension) is stored under another name.
_OURS = frozenset({"collector", "sequence", "index", "fingerprint", "invalid", "watermark"})
_MOST_BYTES = 16_384  # of all attributes of an event, so that its record fits into Kafka's limit
_MOST_ATTRIBUTES = 1000  # of one event, including data

_ENVELOPE = msgspec.json.Decoder(dict[str, msgspec.Raw])
_BATCH = msgspec.json.Decoder(list[msgspec.Raw])
_Integer = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_SCALAR = msgspec.json.Decoder(str | bool | _Integer | None)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def attributes_in(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The attributes in `ce-…` headers; BodyRefused (400) if one is not UTF-8.

    Whether they make a complete CloudEvent is checked later.
    """
    return {
        name[len(PREFIX) :].decode("latin-1"): _header_value(name, value)
        for name, value in headers
        if name.startswith(PREFIX)
    }


def _header_value(name: bytes, value: bytes) -> str:
    text = value.strip()
    if quoted := _QUOTED.fullmatch(text.decode("latin-1")):
        text = _ESCAPED.sub(r"\1", quoted[1]).encode("latin-1")
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise BodyRefused(
            f"header {name.decode('latin-1')[:100]!r} is not percent-encoded UTF-8",
            status=400,
            remedy="percent-encode all but printable ASCII, as CloudEvents requires",
        ) from None


def is_binary(attributes: Mapping[str, str]) -> bool:
    """Whether the attributes are of a CloudEvent in binary mode, and not only some extras."""
    return "specversion" in attributes


def check_content_type(content_type: str) -> None:
    """BodyRefused (415) if the content type of an event's data is not JSON."""
    if content_type and not _JSON.fullmatch(content_type.strip()):
        raise BodyRefused(
            f"a CloudEvent's data of content type {content_type[:100]!r} is not supported",
            status=415,
            remedy="send its data as application/json",
        )


def binary(body: bytes, content_type: str, attributes: Mapping[str, str]) -> UnpackedBody:
    """The event with attributes in the headers, and the body as its data."""
    given = dict(attributes)
    if content_type:
        given["datacontenttype"] = content_type
    try:
        return UnpackedBody([body], [_checked(given)])
    except InvalidEvent as fault:
        return UnpackedBody([body], None, {0: fault})


def attach(unpacked: UnpackedBody, attributes: Mapping[str, str]) -> None:
    """Give the events of a message its attributes; each event gets its own id."""
    try:
        checked = _renamed(attributes)
    except InvalidEvent as fault:
        unpacked.faults = dict.fromkeys(range(len(unpacked.values)), fault)
        return
    if len(unpacked.values) == 1 or "id" not in checked:
        unpacked.attributes = [checked] * len(unpacked.values)
    else:
        unpacked.attributes = [
            {**checked, "id": f"{checked['id']}.{index}"} for index in range(len(unpacked.values))
        ]


def structured(body: bytes) -> UnpackedBody:
    """The event whose envelope is the body."""
    return _envelopes([body])


def batched(body: bytes, limits: Limits) -> UnpackedBody:
    """The events of an array of envelopes."""
    try:
        envelopes = [bytes(each) for each in _BATCH.decode(body)]
    except _UNREADABLE as error:
        fault = InvalidEvent(
            f"the body is not an array of CloudEvents: {error}",
            remedy='send [{"specversion": "1.0", "id": …, "source": …, "type": …, "data": {…}}, …]',
        )
        return UnpackedBody([body], None, {0: fault})
    if len(envelopes) > limits.max_events:
        raise too_many(len(envelopes), limits)
    return _envelopes(envelopes)


def _envelopes(envelopes: list[bytes]) -> UnpackedBody:
    unpacked = UnpackedBody([], [])
    assert unpacked.attributes is not None
    for index, envelope in enumerate(envelopes):
        try:
            value, attributes = _open(envelope)
        except InvalidEvent as fault:
            # Rejected with its envelope: the error is there.
            unpacked.faults[index] = fault.without_traceback()
            value, attributes = envelope, {}
        unpacked.values.append(value)
        unpacked.attributes.append(attributes)
    return unpacked


def _open(envelope: bytes) -> tuple[bytes, dict[str, str]]:
    try:
        members = _ENVELOPE.decode(envelope)
    except _UNREADABLE as error:
        raise InvalidEvent(
            f"the event is not a CloudEvent: {error}",
            remedy='send {"specversion": "1.0", "id": …, "source": …, "type": …, "data": {…}}',
        ) from None
    if len(members) > _MOST_ATTRIBUTES:
        raise InvalidEvent(
            f"the CloudEvent has {len(members):,} members, of at most {_MOST_ATTRIBUTES:,}",
            remedy="put the event's values into data",
        )
    data, encoded = members.pop("data", None), members.pop("data_base64", None)
    attributes = {
        name: text for name, raw in members.items() if (text := _text(name, raw)) is not None
    }
    checked = _checked(attributes)
    return _data(data, encoded), checked


def _text(name: str, raw: msgspec.Raw) -> str | None:
    """An attribute's value as canonical text; None if it is not set."""
    value: Any
    try:
        value = _SCALAR.decode(raw)
    except _UNREADABLE:
        shown = bytes(raw)[:60].decode("utf-8", "replace")
        raise _fault(name, f"a text, a boolean or a whole number of 32 bits, got {shown}") from None
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


def _data(data: msgspec.Raw | None, encoded: msgspec.Raw | None) -> bytes:
    if data is not None and encoded is not None:
        raise _fault("data", "either data or data_base64, got both")
    if encoded is not None:
        try:
            return base64.b64decode(_text("data_base64", encoded) or "", validate=True)
        except (binascii.Error, ValueError):
            raise _fault("data_base64", "base64 text") from None
    if data is None:
        raise _fault("data", "the event's values, but it is missing")
    return bytes(data)


def _checked(attributes: Mapping[str, str]) -> dict[str, str]:
    """The attributes of a complete CloudEvent; InvalidEvent names the one that is wrong."""
    for name in _REQUIRED:
        if name not in attributes:
            raise _fault(name, "a text, but it is missing")
    if attributes["specversion"] != "1.0":
        raise _fault("specversion", f"'1.0', got {attributes['specversion'][:50]!r}")
    return _renamed(attributes)


def _renamed(attributes: Mapping[str, str]) -> dict[str, str]:
    """The attributes as stored in records: names that we use get another name."""
    for name, value in attributes.items():
        _check_attribute(name, value)
    size = sum(len(name) + len(value.encode()) for name, value in attributes.items())
    if size > _MOST_BYTES:
        raise InvalidEvent(
            f"the CloudEvents attributes have {size} bytes, of at most {_MOST_BYTES}",
            remedy="put large values into data",
        )
    return {f"sender{name}" if name in _OURS else name: value for name, value in attributes.items()}


def _check_attribute(name: str, value: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidEvent(
            f"CloudEvents attribute {name[:100]!r} has a name that is not of a-z and 0-9",
            field=name[:100],
            remedy="rename it",
        )
    if _CONTROL.search(value):
        raise _fault(name, "text without control codes")
    if not value and name in _NEVER_EMPTY:
        raise _fault(name, "a text that is not empty")
    if name == "time":
        try:
            Timestamp.check(value.upper())
        except ValueError:
            raise _fault(name, f"a time like '2026-01-31T12:00:00Z', got {value[:50]!r}") from None
    elif name == "datacontenttype" and not _JSON.fullmatch(value):
        raise _fault(name, f"application/json, got {value[:50]!r}")


def _fault(name: str, expected: str) -> InvalidEvent:
    return InvalidEvent(
        f"CloudEvents attribute {name[:100]!r}: expected {expected}", field=name[:100]
    )
