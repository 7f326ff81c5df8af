"""Builds messages from files: a large file becomes many, small files share one."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator
from dataclasses import dataclass

from millstream.connectors.directory.description import DirectorySource
from millstream.connectors.directory.event_splitter import UnreadableFile
from millstream.connectors.directory.file_reader import MOST_EVENTS, FilePiece, read_pieces
from millstream.connectors.directory.listing import File
from millstream.connectors.directory.read_progress import DirectoryProgress
from millstream.connectors.settings import SourceSettings

_MOST_BYTES = 256 * 1024
_TRIES = 3  # of a file that the system fails to read

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileMessage:
    """A message, and the bookmark after it."""

    body: bytes
    events: int
    content_type: str
    bookmark: bytes


class MessageBuilder:
    """Reads files one after another. Its methods block: call them in a thread, one at a time."""

    def __init__(
        self,
        source: DirectorySource,
        progress: DirectoryProgress,
        settings: SourceSettings,
        tries: dict[str, int],
    ) -> None:
        self._source = source
        self._progress = progress
        self._longest = settings.max_body
        self._most = min(MOST_EVENTS, settings.max_events)
        self._tries = tries  # by name; outlives this object
        self._files: list[File] = []
        self._file: File | None = None
        self._pieces: Generator[FilePiece] | None = None
        self._next: FilePiece | None = None  # read, but not part of a message yet

    @property
    def left(self) -> int:
        """How many files are not read yet."""
        return len(self._files) + (self._file is not None)

    def add(self, files: list[File]) -> None:
        """Read these, in their order."""
        self._files = files[::-1]

    def next_message(self) -> FileMessage | None:
        """The next message; None when all files are read."""
        pieces: list[FilePiece] = []
        size = events = 0
        while (piece := self._peek(pieces)) is not None:
            if pieces and (
                (piece.content_type, piece.header) != (pieces[0].content_type, pieces[0].header)
                or size + len(piece.body) > min(_MOST_BYTES, self._longest) - len(piece.header)
                or events + piece.events > self._most
            ):
                break
            pieces.append(piece)
            size, events = size + len(piece.body), events + piece.events
            self._next = None
            assert self._file is not None
            self._progress.advance(self._file, piece.end)
        if not pieces:
            return None
        body = pieces[0].header + b"".join(piece.body for piece in pieces)
        return FileMessage(body, events, pieces[0].content_type, self._progress.bookmark())

    def close(self) -> None:
        """Close the file that is open."""
        if self._pieces is not None:
            self._pieces.close()

    def _peek(self, pieces: list[FilePiece]) -> FilePiece | None:
        while self._next is None:
            if self._file is None:
                if not self._files:
                    return None
                self._open(self._files.pop())
            try:
                self._advance()
            except OSError:
                if not pieces:
                    raise
                return None  # what was read before counts as read, and must be offered first
        return self._next

    def _open(self, file: File) -> None:
        path = os.path.join(self._source.folder, file.name)
        start = self._progress.position(file)
        self._file = file
        self._pieces = read_pieces(path, self._source.format, start, self._longest, self._most)

    def _advance(self) -> None:
        file = self._file
        assert file is not None
        try:
            self._next = next(self._pieces, None) if self._pieces is not None else None
            if self._next is not None:
                return
            self._progress.finish(file)
        except FileNotFoundError:
            _log.info("%s was gone from %s before it was read", file.name, self._source.folder)
            self._progress.forget(file)
        except UnreadableFile as error:
            self._fail(file, str(error))
        except OSError as error:
            tried = self._tries[file.name] = self._tries.get(file.name, 0) + 1
            if tried < _TRIES and not isinstance(error, PermissionError):
                self._files.append(file)  # to resume where it was
                self._file = None
                raise
            self._fail(file, error.strerror or str(error))
        self._tries.pop(file.name, None)
        self._file = None

    def _fail(self, file: File, reason: str) -> None:
        self._progress.fail(file, reason)
        _log.error(
            "cannot read %s in %s: %s; reading continues with the other files",
            file.name,
            self._source.folder,
            reason,
        )
