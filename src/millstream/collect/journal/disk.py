"""The journal's calls to the operating system, in one place."""

from __future__ import annotations

import errno
import os
from pathlib import Path


class Disk:
    """What can fail. Tests that need a disk which fails on demand give another one."""

    def create(self, path: Path) -> int:
        """A new file to write; its descriptor."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, descriptor: int, data: bytes) -> None:
        """All of it at the end of the file: in one call, unless the disk takes only a part."""
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
    """Make names that were added or removed durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def why(error: OSError) -> str:
    """The cause, as it stands in errors."""
    return (error.strerror or str(error)).lower()


def remedy(error: OSError) -> str:
    """What the operator can do about it."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return "free space on that disk, or lower journal.max_bytes"
        case errno.EROFS:
            return "mount the disk writable again (dmesg tells why it was not)"
        case errno.EIO:
            return "see dmesg; the disk may be failing"
        case errno.EACCES | errno.EPERM:
            return "let the collector's user write there"
        case _:
            return "see dmesg"
