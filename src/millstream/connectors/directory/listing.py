"""Lists the files of a directory, and tells which are complete."""

from __future__ import annotations

import fnmatch
import os
import stat
from dataclasses import dataclass

import xxhash

# Suffixes of files that are still being written; prefixes that Spark and Hadoop give to files that
# are not data.
_NOT_YET = (".tmp", ".temp", ".part", ".partial", ".filepart", ".crdownload", "~")
_HIDDEN = (".", "_")


@dataclass(frozen=True, slots=True)
class File:
    """A file as it was when the directory was listed; times in nanoseconds."""

    name: str
    size: int
    modified: int
    changed: int  # when it was last written, renamed or given another mode; nobody can set it

    @property
    def identity(self) -> int:
        """The same for the same content under the same name.

        It leaves out the inode, which changes when some network file systems are mounted again.
        """
        return xxhash.xxh3_64_intdigest(f"{self.name}\0{self.size}\0{self.modified}".encode())


def list_files(folder: str, pattern: str) -> list[File]:
    """The files that match, without hidden and unfinished ones. OSError if that fails."""
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
                name.encode()  # a name that is not UTF-8 cannot be stored
                status = entry.stat()
                if not stat.S_ISREG(status.st_mode):
                    continue
                changed = status.st_ctime_ns
                if entry.is_symlink():  # it arrived when the link was made
                    changed = max(changed, entry.stat(follow_symlinks=False).st_ctime_ns)
            except (OSError, UnicodeEncodeError):
                continue  # deleted meanwhile, or a broken link
            found.append(File(name, status.st_size, status.st_mtime_ns, changed))
    return found


class SettledFiles:
    """Separates complete files from those that are still being written."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: dict[str, tuple[int, float]] = {}  # name: identity, first seen

    def complete(self, files: list[File], now: float) -> list[File]:
        """The files that did not change for long enough, or were renamed into place."""
        seen, complete = {}, []
        for file in files:
            identity, since = self._seen.get(file.name, (0, now))
            if identity != file.identity:
                identity, since = file.identity, now
            seen[file.name] = identity, since
            if now - since >= self._seconds or _was_renamed(file):
                complete.append(file)
        self._seen = seen
        return complete


def _was_renamed(file: File) -> bool:
    # Writing sets both times to the same value. Programs rename a file, or set its times or mode,
    # when it is complete. Some set the mode before the first byte, though.
    return file.changed > file.modified and file.size > 0
