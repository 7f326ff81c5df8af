"""Which files are read, and how far: small enough to be the bookmark of every message.

A file is known by its name, size and time of writing. The newest `MOST_DONE` of those that were
read are remembered one by one. Of the older ones, only the time is: a file that arrived (was
written or renamed) before that counts as read. It goes by the time of the last change, which nobody
can set back, and only past files that are all read: so one that comes late, or with an old date, is
not taken for read. All of it is atomic with the events, as it is written with them.
"""

from __future__ import annotations

import struct

import msgspec

from millstream.connectors.directory.listing import File

MOST_DONE = 2048
_MOST_FAILED = 100
_PAIR = struct.Struct("<QQ")


class CurrentFile(msgspec.Struct, array_like=True):
    """The file that is being read, and where to go on in it."""

    identity: int
    name: str
    position: int


class FailedFile(msgspec.Struct, array_like=True):
    """A file that could not be read. It is tried again when it, or the right to it, changes."""

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
    """How far the reading is, in one folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.current: CurrentFile | None = None
        self.failed: dict[str, FailedFile] = {}
        self._done: dict[int, int] = {}  # identity: changed
        self._before = 0  # what arrived until then is read

    @classmethod
    def of(cls, bookmark: bytes | None, folder: str) -> DirectoryProgress:
        """As it was when the bookmark was written; from the start if it is of another folder."""
        progress = cls(folder)
        if bookmark is None:
            return progress
        try:
            written = msgspec.msgpack.decode(bookmark, type=_StoredProgress)
        except msgspec.DecodeError:  # of another kind of source, which the stream had before
            return progress
        if written.folder == folder:
            progress._before = written.before
            progress._done = dict(_PAIR.iter_unpack(written.done))
            progress.current = written.current
            progress.failed = written.failed
        return progress

    def bookmark(self) -> bytes:
        """All of it, to be written down."""
        done = b"".join(_PAIR.pack(*each) for each in self._done.items())
        return msgspec.msgpack.encode(
            _StoredProgress(self.folder, self._before, done, self.current, self.failed)
        )

    def is_done(self, file: File) -> bool:
        """Whether it was read to its end."""
        return self.remembers(file) or file.changed <= self._before

    def remembers(self, file: File) -> bool:
        """Whether it was this very file that was read: sure enough to delete it."""
        return file.identity in self._done

    def has_failed(self, file: File) -> bool:
        """Whether it could not be read, and nothing changed since."""
        failed = self.failed.get(file.name)
        return failed is not None and (failed.identity, failed.changed) == (
            file.identity,
            file.changed,
        )

    def position(self, file: File) -> int:
        """Where to go on in it."""
        return self.current.position if self.current and self._is_current(file) else 0

    def advance(self, file: File, position: int) -> None:
        """It is read up to there."""
        self.current = CurrentFile(file.identity, file.name, position)

    def finish(self, file: File) -> None:
        """It is read."""
        self._done[file.identity] = file.changed
        self.failed.pop(file.name, None)
        self._leave(file)

    def fail(self, file: File, reason: str) -> None:
        """It cannot be read, or not further."""
        self.failed[file.name] = FailedFile(file.identity, file.changed, reason[:500])
        while len(self.failed) > _MOST_FAILED:
            oldest = next(iter(self.failed))
            failed = self.failed.pop(oldest)
            self._done[failed.identity] = failed.changed
        self._leave(file)

    def forget(self, file: File) -> None:
        """It is no longer there."""
        self._done.pop(file.identity, None)
        self._leave(file)

    def shorten(self, waiting: list[File], until: int) -> None:
        """Remember fewer files, given those that are not read yet: none of them may be passed."""
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
