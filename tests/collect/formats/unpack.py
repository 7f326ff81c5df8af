"""Unpacks a body of a stream without a schema."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.collect.formats.body import Unpacker
from millstream.collect.formats.unpacked import Limits, UnpackedBody
from millstream.schema import Struct


def unpack(
    body: bytes,
    content_type: str,
    encoding: str,
    limits: Limits,
    attributes: Mapping[str, str] | None = None,
) -> UnpackedBody:
    """The events in a body; every cell of CSV is text."""
    return Unpacker(Struct(()), limits).unpack(body, content_type, encoding, attributes or {})
