"""Converts PostgreSQL's values from the server's text to JSON.

| type | JSON |
|---|---|
| integers, oid | number |
| real, double precision, numeric | number, the server's digits; "NaN", "Infinity", "-Infinity" |
| boolean | true, false |
| json, jsonb | as it is |
| timestamp, timestamptz | RFC 3339 in UTC; a timestamp without zone is taken as UTC |
| date | "2026-11-16" |
| bytea | base64 |
| arrays | arrays; a domain is its base type |
| all others | the server's text |
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping

import msgspec

Convert = Callable[[bytes], bytes]  # PostgreSQL's text to JSON

_encode = msgspec.json.Encoder().encode
_NUMBER = re.compile(rb"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_TIMESTAMP = re.compile(rb"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d+)?)(?:\+00)?")
_BOUNDS = re.compile(r"(\[-?\d+:-?\d+\])+=")


def text(written: bytes) -> bytes:
    """A JSON string."""
    return _encode(written.decode())


def _number(written: bytes) -> bytes:
    return written if _NUMBER.fullmatch(written) else text(written)


def _boolean(written: bytes) -> bytes:
    return b"true" if written == b"t" else b"false"


def _json(written: bytes) -> bytes:
    # A line break between tokens means the same as a space, and an event must be one line.
    return written.replace(b"\n", b" ").replace(b"\r", b" ")


def _timestamp(written: bytes) -> bytes:
    match = _TIMESTAMP.fullmatch(written)
    if match is None:  # infinity, years before Christ or beyond 9999
        return text(written)
    return b'"%sT%sZ"' % match.groups()


def _bytea(written: bytes) -> bytes:
    return b'"%s"' % base64.b64encode(bytes.fromhex(written[2:].decode()))


_BY_TYPE: dict[int, Convert] = {
    **dict.fromkeys((20, 21, 23, 26, 700, 701, 1700), _number),
    16: _boolean,
    17: _bytea,
    114: _json,
    3802: _json,
    1114: _timestamp,
    1184: _timestamp,
}
# Array type → element type. PostgreSQL's built-in oids never change.
_ELEMENTS = {
    **{1005: 21, 1007: 23, 1016: 20, 1028: 26, 1021: 700, 1022: 701, 1231: 1700, 1000: 16},
    **{1001: 17, 199: 114, 3807: 3802, 1115: 1114, 1185: 1184, 1182: 1082, 1183: 1083},
    **{1009: 25, 1015: 1043, 1014: 1042, 2951: 2950, 1003: 19, 1041: 869, 651: 650, 1187: 1186},
}


class TypeCodec:
    """The conversion of each type; domains and array types of users come from the catalog."""

    # Domains (typbasetype) and arrays of types that are not built in.
    QUERY = (
        "SELECT oid, typbasetype, typelem FROM pg_catalog.pg_type"
        " WHERE oid >= 16384 AND (typtype = 'd' OR (typlen = -1 AND typcategory = 'A'))"
    )

    def __init__(self, rows: Iterable[tuple[int, int, int]] = ()) -> None:
        self._bases = {oid: base for oid, base, _ in rows if base}
        self._elements: Mapping[int, int] = _ELEMENTS | {
            oid: element for oid, base, element in rows if element and not base
        }
        self._known: dict[int, Convert] = dict(_BY_TYPE)

    def convert(self, oid: int) -> Convert:
        """The function that converts a value of this type to JSON."""
        if oid not in self._known:
            self._known[oid] = self._make(oid)
        return self._known[oid]

    def _make(self, oid: int) -> Convert:
        if oid in self._bases:
            return self.convert(self._bases[oid])
        if oid in self._elements:
            element = self.convert(self._elements[oid])
            return lambda written: _array(written, element)
        return text


def _array(written: bytes, element: Convert) -> bytes:
    literal = written.decode()
    if bounds := _BOUNDS.match(literal):  # an array whose first index is not 1
        literal = literal[bounds.end() :]
    converted, end = _elements(literal, 1, element)
    if literal[:1] != "{" or end != len(literal):
        return text(written)
    return converted


def _elements(literal: str, at: int, element: Convert) -> tuple[bytes, int]:
    """The elements from `at`, after an opening brace, and the index after the closing one."""
    found: list[bytes] = []
    while at < len(literal):
        match literal[at]:
            case "}":
                return b"[" + b",".join(found) + b"]", at + 1
            case ",":
                at += 1
            case "{":
                inner, at = _elements(literal, at + 1, element)
                found.append(inner)
            case '"':
                item, at = _quoted(literal, at + 1)
                found.append(element(item.encode()))
            case _:
                end = min(i for i in (literal.find(",", at), literal.find("}", at)) if i >= 0)
                item = literal[at:end]
                found.append(b"null" if item == "NULL" else element(item.encode()))
                at = end
    return b"", -1  # no end: not the text of an array


def _quoted(literal: str, at: int) -> tuple[str, int]:
    parts: list[str] = []
    while literal[at] != '"':
        if literal[at] == "\\":
            at += 1
        parts.append(literal[at])
        at += 1
    return "".join(parts), at + 1
