"""Reads the events of a file, one piece at a time."""

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
MOST_EVENTS = 1000  # per piece, and per message

_FORMATS = {
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_SPLITTERS: dict[str, type[EventSplitter]] = {
    "ndjson": NdjsonSplitter,
    "json": JsonSplitter,
    "csv": CsvSplitter,
}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Complete events of a file, each with its line end."""

    body: bytes
    events: int
    end: int  # where to resume: bytes of the decompressed content, or rows of Parquet
    content_type: str
    header: bytes = b""  # of CSV; it must precede each body


def read_pieces(
    path: str, given: str, start: int, longest: int, most: int = MOST_EVENTS
) -> Generator[FilePiece]:
    """A file's events from `start` on, in pieces of about CHUNK bytes, at most `longest`.

    UnreadableFile if the file does not have the format of its name (or `given`). OSError with an
    errno if the system cannot read it. It blocks: call it in a thread.
    """
    form, compression = format_of(path, given)
    if form == "parquet":
        # Imported only where it is needed, because it takes long.
        from millstream.connectors.directory.parquet import read_rows

        for body, events, end in read_rows(path, start, CHUNK, most):
            yield FilePiece(body, events, end, "application/x-ndjson")
        return
    # An event is found to be too long only after that much was read, plus a chunk.
    chunk = min(CHUNK, longest // 4)
    splitter = _SPLITTERS[form](longest - chunk, most)
    with contextlib.closing(_open(path, compression)) as content:
        yield from _read_text(content, splitter, start, chunk)


def format_of(path: str, given: str) -> tuple[str, str]:
    """A file's format and compression; UnreadableFile if neither its name nor `given` tells."""
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


def _read_text(
    content: _FileContent, splitter: EventSplitter, start: int, chunk: int
) -> Iterator[FilePiece]:
    head = content.read(chunk)
    while (begin := splitter.skip_head(head)) is None and (more := content.read(chunk)):
        head += more
    if begin is None:
        begin = splitter.skip_head(head + b"\n") or 0
    position = max(start, begin)
    if position > len(head):
        content.skip(position - len(head))
    buffer = head[position:]
    while True:
        while (found := splitter.split(buffer)) is not None:
            position += found.used
            buffer = buffer[found.used :]
            if found.events:
                yield FilePiece(
                    found.body, found.events, position, splitter.content_type, splitter.header
                )
        if not (more := content.read(chunk)):
            break
        buffer += more
    last = splitter.split_last(buffer)
    if last.events:
        end = position + len(buffer)
        yield FilePiece(last.body, last.events, end, splitter.content_type, splitter.header)


class _FileContent:
    """A file's content, decompressed while it is read."""

    def __init__(self, file: IO[bytes], decompressed: Any) -> None:
        self._file = file
        self._decompressed = decompressed

    def read(self, size: int) -> bytes:
        try:
            data: bytes = self._decompressed.read(size)
        except OSError as error:
            if error.errno is None:  # from the decompressor, not from the system
                raise UnreadableFile(f"it is damaged: {error}") from None
            raise
        return data

    def skip(self, size: int) -> None:
        if self._decompressed is self._file:
            self._file.seek(size, io.SEEK_CUR)
            return
        while size > 0 and (skipped := len(self.read(min(size, CHUNK)))):
            size -= skipped

    def close(self) -> None:
        if self._decompressed is not self._file:
            self._decompressed.close()
        self._file.close()


def _open(path: str, compression: str) -> _FileContent:
    file = open(path, "rb")  # noqa: SIM115 -- _FileContent.close closes it
    if not compression:
        return _FileContent(file, file)
    # Arrow's decompressor, because it detects a truncated file in either format.
    from pyarrow import CompressedInputStream

    return _FileContent(file, CompressedInputStream(file, compression))
