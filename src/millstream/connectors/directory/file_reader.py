"""The events in a file, a piece at a time: text is cut at its lines, rows or values."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import IO, Any

from millstream.connectors.directory.event_splitter import (
    CsvSplitter,
    EventSplitter,
    JsonSplitter,
    NdjsonSplitter,
    UnreadableFile,
)

CHUNK = 64 * 1024
MOST_EVENTS = 1000  # of a piece, or of a message

_FORMATS = {
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_CUTS: dict[str, type[EventSplitter]] = {
    "ndjson": NdjsonSplitter,
    "json": JsonSplitter,
    "csv": CsvSplitter,
}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Whole events of a file, each with its line end."""

    body: bytes
    events: int
    end: int  # where to go on: in bytes of the content as it is unpacked, or in rows of Parquet
    content_type: str
    header: bytes = b""  # what must be before each body, of CSV


def read_pieces(
    path: str, given: str, start: int, longest: int, most: int = MOST_EVENTS
) -> Generator[FilePiece]:
    """A file's events from `start` on, in pieces of about CHUNK bytes, at most `longest`.

    Unreadable if the file is not what its name (or `given`, the format) says. OSError with a number
    if it cannot be got at. Blocks: for a thread.
    """
    form, compression = format_of(path, given)
    if form == "parquet":
        # Imported where it is needed: it takes longer than all else here.
        from millstream.connectors.directory.parquet import read_rows

        for body, events, end in read_rows(path, start, CHUNK, most):
            yield FilePiece(body, events, end, "application/x-ndjson")
        return
    # An event is known to be too long only when that much was read, and a chunk more.
    chunk = min(CHUNK, longest // 4)
    cut = _CUTS[form](longest - chunk, most)
    with contextlib.closing(_open(path, compression)) as content:
        yield from _text(content, cut, start, chunk)


def format_of(path: str, given: str) -> tuple[str, str]:
    """A file's format and compression; Unreadable if its name says none and none is given."""
    stem, suffix = os.path.splitext(path)
    compression = _COMPRESSIONS.get(suffix.lower(), "")
    if compression:
        suffix = os.path.splitext(stem)[1]
    form = _FORMATS.get(suffix.lower(), "") or given
    if not form:
        raise UnreadableFile(
            f"its suffix names none of {', '.join(_FORMATS)}; set the source's format"
        )
    if form == "parquet" and compression:
        raise UnreadableFile("Parquet is compressed inside, and cannot be read through another one")
    return form, compression


def _text(content: _FileContent, cut: EventSplitter, start: int, chunk: int) -> Iterator[FilePiece]:
    head = content.read(chunk)
    while (begin := cut.begin(head)) is None and (more := content.read(chunk)):
        head += more
    if begin is None:
        begin = cut.begin(head + b"\n") or 0
    position = max(start, begin)
    if position > len(head):
        content.skip(position - len(head))
    buffer = head[position:]
    while True:
        while (found := cut.cut(buffer)) is not None:
            position += found.used
            buffer = buffer[found.used :]
            if found.events:
                yield FilePiece(found.body, found.events, position, cut.content_type, cut.header)
        if not (more := content.read(chunk)):
            break
        buffer += more
    last = cut.last(buffer)
    if last.events:
        end = position + len(buffer)
        yield FilePiece(last.body, last.events, end, cut.content_type, cut.header)


class _FileContent:
    """A file's content, unpacked while it is read."""

    def __init__(self, file: IO[bytes], unpacked: Any) -> None:
        self._file = file
        self._unpacked = unpacked

    def read(self, size: int) -> bytes:
        try:
            data: bytes = self._unpacked.read(size)
        except OSError as error:
            if error.errno is None:  # of the unpacking, not of the system
                raise UnreadableFile(f"it is damaged: {error}") from None
            raise
        return data

    def skip(self, size: int) -> None:
        if self._unpacked is self._file:
            self._file.seek(size, io.SEEK_CUR)
            return
        while size > 0 and (skipped := len(self.read(min(size, CHUNK)))):
            size -= skipped

    def close(self) -> None:
        if self._unpacked is not self._file:
            self._unpacked.close()
        self._file.close()


def _open(path: str, compression: str) -> _FileContent:
    file = open(path, "rb")  # noqa: SIM115 -- whoever has the content closes it
    if not compression:
        return _FileContent(file, file)
    # Arrow's unpacking, because it tells a file that ends too early, in either format.
    from pyarrow import CompressedInputStream

    return _FileContent(file, CompressedInputStream(file, compression))
