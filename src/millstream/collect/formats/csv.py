"""Converts CSV with a header (RFC 4180) to JSON: each row is an event.

A cell is converted to the type of its column. If that fails it becomes text: then the validator
rejects the row, and names the field.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator

import msgspec

from millstream.collect.formats.unpacked import (
    BodyRefused,
    Limits,
    UnpackedBody,
    line_too_long,
    too_many,
)
from millstream.errors import InvalidEvent
from millstream.schema import Primitive, Schema, Type
from millstream.schema.types import INTEGERS

Cell = Callable[[str], bytes]

_encode = msgspec.json.encode
_ANY = msgspec.json.Decoder(msgspec.Raw)
_WHOLE = re.compile(r"[+-]?\d{1,400}", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_LOOSE_NUMBER = re.compile(
    r"[+-]?(?:\d{1,400}\.?\d{0,400}|\.\d{1,400})(?:[eE][+-]?\d{1,3})?", re.ASCII
)
_BOOLEANS = {
    **dict.fromkeys(("true", "t", "1"), b"true"),
    **dict.fromkeys(("false", "f", "0"), b"false"),
}
# With a long header and many short rows, the JSON is far larger than the CSV.
_MOST_GROWTH = 4


class _Lines:
    """The lines of a text; `read_since` returns the raw text of the last row."""

    def __init__(self, text: str) -> None:
        self._lines = io.StringIO(text, newline="")  # keeps line breaks in quotes
        self._read: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self._read.append(line)
        return line

    def read_since(self) -> bytes:
        row = "".join(self._read)
        self._read.clear()
        return row.strip("\r\n").encode()


def rows(body: bytes, schema: Schema, limits: Limits) -> UnpackedBody:
    """The rows as JSON objects; a row that does not fit the header is a fault.

    BodyRefused if the text or its header cannot be read, or it is too large.
    """
    try:
        lines = _Lines(body.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BodyRefused(
            f"the CSV is not UTF-8 text: byte {error.object[error.start]:#04x} at {error.start}",
            status=400,
            remedy="send it in UTF-8",
        ) from None
    reader = csv.reader(lines, strict=True)
    columns = _columns(reader, schema, limits)
    lines.read_since()
    unpacked, length = UnpackedBody([]), 0
    while True:
        index = len(unpacked.values)
        try:
            cells = next(reader, None)
            raw = lines.read_since()
            if cells is None:
                return unpacked
            if not cells:
                continue  # an empty line
            value = _object(cells, columns, len(raw), limits)
        except csv.Error as error:
            raw = value = lines.read_since()
            unpacked.faults[index] = InvalidEvent(
                f"the row is not CSV: {error}", remedy='write a cell with quotes as "a ""b"" c"'
            )
        except InvalidEvent as fault:
            value = raw
            unpacked.faults[index] = fault.without_traceback()
        if index == limits.max_events:
            raise too_many(index + 1, limits)
        length += len(value)
        if length > _MOST_GROWTH * limits.max_body:
            raise BodyRefused(
                f"the rows make more than {_MOST_GROWTH * limits.max_body} bytes of JSON",
                status=413,
                remedy="split them into several requests, or shorten the names in the header",
            )
        unpacked.values.append(value)


def _columns(
    reader: Iterator[list[str]], schema: Schema, limits: Limits
) -> list[tuple[bytes, Cell]]:
    names: list[str] | None = []
    try:
        while names == []:
            names = next(reader, None)
    except csv.Error as error:
        raise _bad_header(f"is not CSV: {error}") from None
    if names is not None and len(names) > limits.max_columns:
        raise _bad_header(
            f"has {len(names):,} columns, of at most {limits.max_columns:,}",
            remedy="send only the columns of the stream's schema",
        )
    columns, seen = [], set()
    for place, name in enumerate(names or (), 1):
        if not name:
            raise _bad_header(f"has no name for column {place}")
        if name in seen:
            raise _bad_header(f"has the column {name[:100]!r} twice")
        seen.add(name)
        field = schema.field(name)
        columns.append((_encode(name) + b":", _cell_of(field.type if field else None)))
    return columns


def _bad_header(why: str, remedy: str = "name each column once in the first line") -> BodyRefused:
    return BodyRefused(f"the CSV's first line {why}", status=400, remedy=remedy)


def _object(
    cells: list[str], columns: list[tuple[bytes, Cell]], length: int, limits: Limits
) -> bytes:
    if length > limits.max_line:
        raise line_too_long(length, limits)
    if len(cells) != len(columns):
        raise InvalidEvent(
            f"the row has {len(cells)} cells, the header {len(columns)}",
            remedy="quote a cell that has a comma or a line break in it",
        )
    parts = [
        name + (convert(cell) if cell else b"null")
        for cell, (name, convert) in zip(cells, columns, strict=True)
    ]
    return b"{" + b",".join(parts) + b"}"


def _cell_of(of: Type | None) -> Cell:
    """The function that converts a column's cells, if not empty, to JSON."""
    match of:
        case Primitive("boolean"):
            return _boolean
        case Primitive("float" | "double"):
            return _number
        case Primitive("timestamp"):
            return _timestamp
        case Primitive(name) if name in INTEGERS:
            return _whole
        case Primitive() | None:
            return _encode  # a decimal too: as text it keeps its digits
        case _:
            return _nested


def _boolean(cell: str) -> bytes:
    return _BOOLEANS.get(cell.strip().lower()) or _encode(cell)


def _whole(cell: str) -> bytes:
    text = cell.strip()
    return str(int(text)).encode() if _WHOLE.fullmatch(text) else _encode(cell)


def _number(cell: str) -> bytes:
    text = cell.strip()
    if _NUMBER.fullmatch(text):
        return text.encode()
    return _encode(float(text)) if _LOOSE_NUMBER.fullmatch(text) else _encode(cell)


def _timestamp(cell: str) -> bytes:
    text = cell.strip()
    return str(int(text)).encode() if _WHOLE.fullmatch(text) else _encode(text)


def _nested(cell: str) -> bytes:
    text = cell.encode()
    try:
        _ANY.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return _encode(cell)
    return text
