"""The journal's calls to the operating system."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

from millstream.runtime.home import private_opener


class Disk:
    """File operations that can fail. Tests replace it by a disk that fails on demand."""

    def create(self, path: Path) -> int:
        """Create a file for writing; its descriptor."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, descriptor: int, data: bytes) -> None:
        """Append all data: in one system call, unless the disk accepts only a part."""
        written = os.write(descriptor, data)
        while written < len(data):
            written += os.write(descriptor, memoryview(data)[written:])

    def sync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def sync_folder(self, folder: Path) -> None:
        sync_folder(folder)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make added and removed file names durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, data: bytes) -> None:
    """Write or replace a file atomically; durable when it returns. Several processes may do so."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        with open(fresh, "xb", opener=private_opener) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def why(error: OSError) -> str:
    """The cause, in words for an error message."""
    return (error.strerror or str(error)).lower()


def remedy(error: OSError) -> str:
    """What the operator can do about it."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return "free space on that disk, or lower journal.max_bytes"
        case errno.EROFS:
            return "mount the disk writable again (dmesg says why it was not)"
        case errno.EIO:
            return "see dmesg; the disk may be failing"
        case errno.EACCES | errno.EPERM:
            return "let the collector's user write there"
        case _:
            return "see dmesg"
