"""Which files are read, and how far: small enough to be the bookmark of every message.

A file is identified by its name, size and modification time. The newest `MOST_DONE` read files are
stored one by one. For older ones only a time is stored: a file whose last change (write or rename)
is not later counts as read. Nobody can set the time of the last change back, and the stored time
only passes files that are all read, so a file that arrives late or with an old date is still read.
The bookmark is written together with the events, so both are atomic.
"""

from __future__ import annotations

import struct

import msgspec

from millstream.connectors.directory.listing import File

MOST_DONE = 2048
_MOST_FAILED = 100
_PAIR = struct.Struct("<QQ")


class CurrentFile(msgspec.Struct, array_like=True):
    """The file that is being read, and where to resume in it."""

    identity: int
    name: str
    position: int


class FailedFile(msgspec.Struct, array_like=True):
    """A file that could not be read. It is tried again when its content or its mode changes."""

    identity: int
    changed: int
    reason: str
    moved_to: str = ""


class _StoredProgress(msgspec.Struct, array_like=True):
    folder: str
    before: int
    done: bytes
    current: CurrentFile | None
    failed: dict[str, FailedFile]


class DirectoryProgress:
    """The progress of reading one folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.current: CurrentFile | None = None
        self.failed: dict[str, FailedFile] = {}
        self._done: dict[int, int] = {}  # identity: changed
        self._before = 0  # files that arrived until then are read

    @classmethod
    def of(cls, bookmark: bytes | None, folder: str) -> DirectoryProgress:
        """The progress in a bookmark; from the start if it belongs to another folder."""
        progress = cls(folder)
        if bookmark is None:
            return progress
        try:
            written = msgspec.msgpack.decode(bookmark, type=_StoredProgress)
        except msgspec.DecodeError:  # of another kind of source that the stream had before
            return progress
        if written.folder == folder:
            progress._before = written.before
            progress._done = dict(_PAIR.iter_unpack(written.done))
            progress.current = written.current
            progress.failed = written.failed
        return progress

    def bookmark(self) -> bytes:
        """The progress as bytes."""
        done = b"".join(_PAIR.pack(*each) for each in self._done.items())
        return msgspec.msgpack.encode(
            _StoredProgress(self.folder, self._before, done, self.current, self.failed)
        )

    def is_done(self, file: File) -> bool:
        """Whether the file was read to its end."""
        return self.remembers(file) or file.changed <= self._before

    def remembers(self, file: File) -> bool:
        """Whether exactly this file was read, so that it may be deleted."""
        return file.identity in self._done

    def has_failed(self, file: File) -> bool:
        """Whether the file could not be read, and has not changed since."""
        failed = self.failed.get(file.name)
        return failed is not None and (failed.identity, failed.changed) == (
            file.identity,
            file.changed,
        )

    def position(self, file: File) -> int:
        """Where to resume in the file."""
        return self.current.position if self.current and self._is_current(file) else 0

    def advance(self, file: File, position: int) -> None:
        """Note that the file is read up to there."""
        self.current = CurrentFile(file.identity, file.name, position)

    def finish(self, file: File) -> None:
        """Note that the file is read."""
        self._done[file.identity] = file.changed
        self.failed.pop(file.name, None)
        self._leave(file)

    def fail(self, file: File, reason: str) -> None:
        """Note that the file cannot be read, or not further."""
        self.failed[file.name] = FailedFile(file.identity, file.changed, reason[:500])
        while len(self.failed) > _MOST_FAILED:
            oldest = next(iter(self.failed))
            failed = self.failed.pop(oldest)
            self._done[failed.identity] = failed.changed
        self._leave(file)

    def forget(self, file: File) -> None:
        """Note that the file is gone."""
        self._done.pop(file.identity, None)
        self._leave(file)

    def shorten(self, waiting: list[File], until: int) -> None:
        """Forget old files one by one, but never pass the time of a file in `waiting`."""
        surplus = len(self._done) - MOST_DONE
        if surplus <= MOST_DONE // 8:  # not with every file
            return
        least = min((file.changed for file in waiting), default=until)
        for identity, changed in sorted(self._done.items(), key=lambda each: each[1])[:surplus]:
            if changed >= min(least, until):
                break
            del self._done[identity]
            self._before = max(self._before, changed)

    def _is_current(self, file: File) -> bool:
        return self.current is not None and self.current.identity == file.identity

    def _leave(self, file: File) -> None:
        if self._is_current(file):
            self.current = None
