"""Archives of Java classes, with which Kafka and Spark start faster (class data sharing).

A JVM spends most of its start on reading, checking and linking thousands of classes. Java can write
the result to a file when it ends; later JVMs with the same class path map it into memory. No start
depends on it: a JVM ignores an archive of another build or of other jars. But it does not check
that the file is complete. So the file's name contains its checksum, which every start compares.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import google_crc32c

from millstream.errors import MachineError
from millstream.runtime.jars import cache_folder

_QUIET = "-Xlog:cds*=off"  # do not log that an archive does not fit
_UNUSED = 30 * 24 * 3600.0  # seconds; its Python environment was probably deleted
_PIECE = 1 << 18


class ClassArchive:
    """The archive of one class path and one Java; it may not exist."""

    def __init__(self, name: str, java: Path, jars: Iterable[Path]) -> None:
        self.name, self.java, self.jars = name, java, tuple(jars)
        self._folder = cache_folder().with_name("classes")
        self._stem = f"{name}-{_fingerprint([java.resolve(), *self.jars])}"

    def find(self) -> Path | None:
        """Its file; None if it is missing or damaged. Takes about 30 ms."""
        for file in self._folder.glob(f"{self._stem}-*.jsa"):
            with contextlib.suppress(OSError):
                if file.name == self._name(_checksum(file)):
                    return file
        return None

    def options(self) -> list[str]:
        """Java's options to use the archive; none if it does not exist."""
        file = self.find()
        if file is None:
            return []
        with contextlib.suppress(OSError):  # a read-only cache is fine
            os.utime(file)
        return [f"-XX:SharedArchiveFile={file}", _QUIET]

    @contextlib.contextmanager
    def making(self) -> Iterator[list[str]]:
        """Java's options for a JVM that creates the archive; it must end within the block.

        If the archive exists, they are those of `options`. Only one process creates it at a time;
        the others wait. It appears complete or not at all. OSError if the cache cannot be written,
        MachineError if the JVM wrote nothing.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"{self.name}.lock").open("a", encoding="utf-8") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            if there := self.options():
                yield there
                return
            self._clean_up()
            fresh = self._folder / f"{self._stem}.new"
            yield [f"-XX:ArchiveClassesAtExit={fresh}", _QUIET]
            if not fresh.exists():
                raise MachineError(f"Java wrote no archive of the classes of {self.name}")
            fresh.replace(self._folder / self._name(_checksum(fresh)))

    def _name(self, checksum: str) -> str:
        return f"{self._stem}-{checksum}.jsa"

    def _clean_up(self) -> None:
        """Remove damaged, incomplete and long unused archives."""
        for file in self._folder.glob(f"{self.name}-*"):
            with contextlib.suppress(OSError):
                unused = time.time() - file.stat().st_mtime > _UNUSED
                if unused or file.suffix == ".new" or file.name.startswith(self._stem):
                    file.unlink()


def _checksum(file: Path) -> str:
    checksum = 0
    with file.open("rb") as archive:
        while piece := archive.read(_PIECE):
            checksum = google_crc32c.extend(checksum, piece)
    return f"{checksum:08x}"


def _fingerprint(files: Iterable[Path]) -> str:
    """A hash of paths, sizes and times: a JVM compares them, too."""
    digest = hashlib.sha256()
    for file in files:
        about = file.stat()
        digest.update(f"{file} {about.st_size} {about.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
