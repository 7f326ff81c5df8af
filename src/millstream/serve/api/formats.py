"""Formats of rows in answers: JSON, lines of JSON, CSV and Arrow; the client's Accept decides."""

from __future__ import annotations

import asyncio
import csv
import io
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from millstream.serve.http import Response
from millstream.serve.views.encoding import encode
from millstream.web.problem import Problem

if TYPE_CHECKING:
    import pyarrow as pa

Row = Mapping[str, Any]
Column = tuple[str, str]  # name and type, as Spark or DuckDB writes it

_FEW_ROWS = 100  # are one piece
_MAX_ROWS, _PIECE_BYTES = 1_000, 64 * 1024  # in a piece; takes about a millisecond
_QUERY_REST = "raise limit, or continue with WHERE and ORDER BY"
_QUERY_HEADERS = ((b"vary", b"accept"),)
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_INTEGERS = {
    "tinyint": 8,
    "smallint": 16,
    "int": 32,
    "integer": 32,
    "bigint": 64,
    "long": 64,
}


class RowFormat(Protocol):
    """Writes rows. Each function returns the next bytes of the body."""

    content_type: bytes

    def start(self, head: bytes) -> bytes:
        """The bytes before the rows; `head` has the JSON members that precede them."""
        ...

    def rows(self, rows: Sequence[Row]) -> bytes: ...
    def end(self) -> bytes: ...


class JsonFormat:
    """One object, with the rows as its last member."""

    content_type = b"application/json"

    def __init__(self, columns: Sequence[Column]) -> None:
        self._separator = b""

    def start(self, head: bytes) -> bytes:
        return b'{%b"rows":[' % head

    def rows(self, rows: Sequence[Row]) -> bytes:
        separator, self._separator = self._separator, b","
        return separator + b",".join(map(encode, rows)) if rows else b""

    def end(self) -> bytes:
        return b"]}"


class LinesFormat:
    """An object per line."""

    content_type = b"application/x-ndjson"

    def __init__(self, columns: Sequence[Column]) -> None:
        pass

    def start(self, head: bytes) -> bytes:
        return b""

    def rows(self, rows: Sequence[Row]) -> bytes:
        return b"".join(encode(row) + b"\n" for row in rows)

    def end(self) -> bytes:
        return b""


class CsvFormat:
    """RFC 4180, with a line of names. NULL is empty; structs, arrays and maps are JSON text."""

    content_type = b"text/csv; charset=utf-8; header=present"

    def __init__(self, columns: Sequence[Column]) -> None:
        self._names = [name for name, _ in columns]
        self._text = io.StringIO(newline="")
        self._writer = csv.writer(self._text)

    def start(self, head: bytes) -> bytes:
        self._writer.writerow(self._names)
        return self._flush()

    def rows(self, rows: Sequence[Row]) -> bytes:
        names = self._names
        self._writer.writerows([[_csv_value(row.get(name)) for name in names] for row in rows])
        return self._flush()

    def end(self) -> bytes:
        return b""

    def _flush(self) -> bytes:
        text = self._text.getvalue()
        self._text.seek(0)
        self._text.truncate()
        return text.encode()


class ArrowFormat:
    """Arrow's IPC stream. Structs, arrays and maps are JSON text."""

    content_type = b"application/vnd.apache.arrow.stream"

    def __init__(self, columns: Sequence[Column]) -> None:
        import pyarrow as pa  # takes 50 MB, so only servers whose clients use it import it

        self._columns = [(name, *_arrow_type(type_)) for name, type_ in columns]
        self._schema = pa.schema([(name, type_) for name, type_, _ in self._columns])
        self._buffer = io.BytesIO()
        self._writer = pa.ipc.new_stream(self._buffer, self._schema)

    def start(self, head: bytes) -> bytes:
        return self._flush()

    def rows(self, rows: Sequence[Row]) -> bytes:
        import pyarrow as pa

        arrays = [
            pa.array([read(row.get(name)) for row in rows], type_)
            for name, type_, read in self._columns
        ]
        if rows:
            self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))
        return self._flush()

    def end(self) -> bytes:
        self._writer.close()
        return self._flush()

    def _flush(self) -> bytes:
        written = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        return written


JSON = "application/json"
FORMATS: dict[str, Callable[[Sequence[Column]], RowFormat]] = {
    JSON: JsonFormat,
    "application/x-ndjson": LinesFormat,
    "text/csv": CsvFormat,
    "application/vnd.apache.arrow.stream": ArrowFormat,
}
"""By media type; the first one is for clients that accept anything."""


def choose_format(accept: bytes) -> Callable[[Sequence[Column]], RowFormat]:
    """The format that the client prefers; Problem 406 if it accepts none of ours."""
    return FORMATS[choose_media(accept)]


def choose_media(accept: bytes) -> str:
    """The media type that the client prefers; Problem 406 if it accepts none of ours."""
    text = accept.decode("latin-1")
    if not text.strip():
        return next(iter(FORMATS))
    best, best_quality = None, 0.0
    for media in FORMATS:
        quality = _quality(media, text)
        if quality > best_quality:
            best, best_quality = media, quality
    if best is None:
        raise Problem(
            406,
            f"there is no answer of type {text[:100]!r}",
            remedy=f"accept one of {', '.join(FORMATS)}",
            available=list(FORMATS),
        )
    return best


def write_rows(
    row_format: RowFormat, head: bytes, rows: Iterator[Row], count: int
) -> bytes | AsyncIterator[bytes]:
    """The body; if there are many rows, in pieces between which the server does other work."""
    if count > _FEW_ROWS:
        return _write_pieces(row_format, head, rows)
    return row_format.start(head) + row_format.rows(list(rows)) + row_format.end()


async def _write_pieces(
    row_format: RowFormat, head: bytes, rows: Iterator[Row]
) -> AsyncIterator[bytes]:
    yield row_format.start(head)
    count = 16
    while part := list(islice(rows, count)):
        piece = row_format.rows(part)
        count = max(1, min(_MAX_ROWS, 2 * count, count * _PIECE_BYTES // (len(piece) or 1)))
        yield piece
        await asyncio.sleep(0)
    yield row_format.end()


def truncated_headers(rest: str) -> tuple[tuple[bytes, bytes], ...]:
    """Headers of an answer that lacks rows, whatever its format; `rest`: how to get them."""
    return (
        (b"millstream-truncated", b"true"),
        (b"millstream-rest", rest.encode("ascii", "replace")),
    )


class _SqlColumn(msgspec.Struct):
    name: str
    type: str


class _SqlAnswer(msgspec.Struct):
    columns: list[_SqlColumn]
    rows: list[msgspec.Raw]
    truncated: bool


def format_query_answer(
    accept: bytes,
    answer: bytes,
    headers: tuple[tuple[bytes, bytes], ...] = _QUERY_HEADERS,
    rest: str = _QUERY_REST,
) -> Response:
    """The answer to a query, which is JSON, in the format that the client prefers.

    `rest`: how to get the rows that the answer lacks, if it does.
    """
    make_format = choose_format(accept)
    # Rows are decoded one piece after the other: an answer may have 16 MB.
    decoded = msgspec.json.decode(answer, type=_SqlAnswer)
    if decoded.truncated:
        headers = (*headers, *truncated_headers(rest))
    if make_format is JsonFormat:
        return Response(answer, headers=headers)
    names = [column.name for column in decoded.columns]  # DuckDB numbers repeated ones
    types = [column.type for column in decoded.columns]
    row_format = make_format(list(zip(names, types, strict=True)))
    rows = (dict(zip(names, _decode_row(raw), strict=True)) for raw in decoded.rows)
    body = write_rows(row_format, b"", rows, len(decoded.rows))
    return Response(body, content_type=row_format.content_type, headers=headers)


def _quality(media: str, accept: str) -> float:
    """The quality that Accept gives a media type; the most specific range decides (RFC 9110)."""
    ranges = {"*/*": 0, media.partition("/")[0] + "/*": 1, media: 2}
    found, specific = 0.0, -1
    for part in accept.lower().split(","):
        name, *parameters = (each.strip() for each in part.split(";"))
        if ranges.get(name, -1) > specific:
            specific, found = ranges[name], 1.0
            for parameter in parameters:
                if parameter.startswith("q="):
                    try:
                        found = float(parameter[2:])
                    except ValueError:
                        found = 0.0
    return found


def _csv_value(value: Any) -> Any:
    match value:
        case bool():
            return "true" if value else "false"
        case dict() | list():
            return encode(value).decode()
    return value


def _arrow_type(name: str) -> tuple[pa.DataType, Callable[[Any], Any]]:
    """Arrow's type for a column, and the function that reads a value of our JSON."""
    import pyarrow as pa

    name = name.lower()
    if (bits := _INTEGERS.get(name)) is not None:
        return getattr(pa, f"int{bits}")(), _same
    if (found := _DECIMAL.fullmatch(name)) is not None:
        places = int(found[2])
        return pa.decimal128(int(found[1]), places), lambda value: _to_decimal(value, places)
    match name:
        case "double" | "float":
            return pa.float64() if name == "double" else pa.float32(), _to_float
        case "boolean":
            return pa.bool_(), _same
        case "date":
            return pa.date32(), _to_date
        case "timestamp" | "timestamp with time zone":
            return pa.timestamp("us", "UTC"), _to_time
    return pa.string(), _to_text


_decode_row = msgspec.json.Decoder(list[Any], float_hook=Decimal).decode


def _same(value: Any) -> Any:
    return value


def _to_float(value: Any) -> float | None:
    return None if value is None else float(value)  # also "NaN" and "Infinity"


def _to_decimal(value: Any, places: int) -> Decimal | None:
    return None if value is None else Decimal(str(value)).quantize(Decimal(1).scaleb(-places))


def _to_date(value: Any) -> date | None:
    return None if value is None else date.fromisoformat(value)


def _to_time(value: Any) -> datetime | None:
    return None if value is None else datetime.fromisoformat(value)


def _to_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else encode(value).decode()
