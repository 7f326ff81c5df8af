"""What is in a directory, and which of its files are whole."""

from __future__ import annotations

import fnmatch
import os
import stat
from dataclasses import dataclass

import xxhash

# Names that programs give to what they are still writing, and (as Spark and Hadoop have it) to what
# is not data.
_NOT_YET = (".tmp", ".temp", ".part", ".partial", ".filepart", ".crdownload", "~")
_HIDDEN = (".", "_")


@dataclass(frozen=True, slots=True)
class File:
    """A file as it was when the directory was looked at; times in nanoseconds."""

    name: str
    size: int
    modified: int
    changed: int  # when it was last written, renamed, or given other rights: nobody can set it

    @property
    def identity(self) -> int:
        """The same for the same content under the same name.

        Without the inode, which some network file systems number anew when they are mounted.
        """
        return xxhash.xxh3_64_intdigest(f"{self.name}\0{self.size}\0{self.modified}".encode())


def list_files(folder: str, pattern: str) -> list[File]:
    """The files that match, without hidden and unfinished ones. OSError if it cannot be read."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if (
                name.startswith(_HIDDEN)
                or name.lower().endswith(_NOT_YET)
                or not fnmatch.fnmatchcase(name, pattern)
            ):
                continue
            try:
                name.encode()  # a name that is no text cannot be written down
                status = entry.stat()
                if not stat.S_ISREG(status.st_mode):
                    continue
                changed = status.st_ctime_ns
                if entry.is_symlink():  # it arrived when the link did
                    changed = max(changed, entry.stat(follow_symlinks=False).st_ctime_ns)
            except (OSError, UnicodeEncodeError):
                continue  # gone meanwhile, or a link to nowhere
            found.append(File(name, status.st_size, status.st_mtime_ns, changed))
    return found


class SettledFiles:
    """Tells files that are whole from those that are being written."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: dict[str, tuple[int, float]] = {}  # name: identity, since when

    def whole(self, files: list[File], now: float) -> list[File]:
        """Those that did not change for long enough, or were renamed into place."""
        seen, whole = {}, []
        for file in files:
            identity, since = self._seen.get(file.name, (0, now))
            if identity != file.identity:
                identity, since = file.identity, now
            seen[file.name] = identity, since
            if now - since >= self._seconds or _was_renamed(file):
                whole.append(file)
        self._seen = seen
        return whole


def _was_renamed(file: File) -> bool:
    # Writing sets both times to the same; renaming, and setting times or rights, is what programs
    # do with a file that is complete. Some set rights before the first byte, though.
    return file.changed > file.modified and file.size > 0
