"""Archives of classes, by which the JVMs of Kafka and Spark start with less work.

Most of a JVM's start goes into reading, checking and linking thousands of classes. Java can write
what comes of it into a file when it ends, and later JVMs with the same class path map that into
their memory (class data sharing). No start depends on it: a JVM looks by itself whether an archive
is of its own build and of the same jars, and starts without one that is not. What it does not look
at is whether the file is whole; so its name has its checksum, and every start compares them.
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

_QUIET = "-Xlog:cds*=off"  # that an archive does not fit is no news for whoever reads our output
_UNUSED = 30 * 24 * 3600.0  # seconds; one that belongs to an environment that is gone, most likely
_PIECE = 1 << 18


class ClassArchive:
    """The archive for one class path and one Java, which need not be there."""

    def __init__(self, name: str, java: Path, jars: Iterable[Path]) -> None:
        self.name, self.java, self.jars = name, java, tuple(jars)
        self._folder = cache_folder().with_name("classes")
        self._stem = f"{name}-{_fingerprint([java.resolve(), *self.jars])}"

    def find(self) -> Path | None:
        """Its file; None if it is not there, or damaged. Takes some 30 ms."""
        for file in self._folder.glob(f"{self._stem}-*.jsa"):
            with contextlib.suppress(OSError):
                if file.name == self._name(_checksum(file)):
                    return file
        return None

    def options(self) -> list[str]:
        """Java's options to start from the archive; none if it is not there."""
        file = self.find()
        if file is None:
            return []
        with contextlib.suppress(OSError):  # a cache that is read-only does as well
            os.utime(file)
        return [f"-XX:SharedArchiveFile={file}", _QUIET]

    @contextlib.contextmanager
    def making(self) -> Iterator[list[str]]:
        """Java's options for a JVM that makes the archive; it must have ended within the block.

        They are those of `options` if it is there. One process makes it at a time, the others wait
        for that one; it appears as a whole or not at all. OSError if the cache cannot be written,
        MachineError if the JVM left nothing.
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
                raise MachineError(f"Java made no archive of the classes of {self.name}")
            fresh.replace(self._folder / self._name(_checksum(fresh)))

    def _name(self, checksum: str) -> str:
        return f"{self._stem}-{checksum}.jsa"

    def _clean_up(self) -> None:
        """Remove what is damaged, what a killed maker left, and what nobody has used for long."""
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
    """Of paths, sizes and times, which is what a JVM compares."""
    digest = hashlib.sha256()
    for file in files:
        about = file.stat()
        digest.update(f"{file} {about.st_size} {about.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
