"""Disks that fail on demand; none here does by itself."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from millstream.collect.journal.disk import Disk


class FailingDisk(Disk):
    """A real disk, except for the operations that are named in `failing`, with their error."""

    def __init__(self) -> None:
        self.failing: dict[str, int] = {}
        self.once: set[str] = set()  # of those, the ones that fail only the next time

    def fail(self, *operations: str, error: int = errno.EIO, once: bool = False) -> None:
        self.failing |= dict.fromkeys(operations, error)
        if once:
            self.once |= set(operations)

    def heal(self) -> None:
        self.failing.clear()
        self.once.clear()

    def _perhaps(self, operation: str) -> None:
        code = self.failing.get(operation)
        if code is None:
            return
        if operation in self.once:
            self.once.discard(operation)
            del self.failing[operation]
        raise OSError(code, os.strerror(code))

    def create(self, path: Path) -> int:
        self._perhaps("create")
        return super().create(path)

    def write(self, descriptor: int, data: bytes) -> None:
        if "write" in self.failing:  # as a real one does: some of it is written, then it fails
            super().write(descriptor, data[: len(data) // 2])
        self._perhaps("write")
        super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        self._perhaps("sync")
        super().sync(descriptor)

    def sync_folder(self, folder: Path) -> None:
        self._perhaps("sync_folder")
        super().sync_folder(folder)

    def truncate(self, descriptor: int, size: int) -> None:
        self._perhaps("truncate")
        super().truncate(descriptor, size)

    def remove(self, path: Path) -> None:
        self._perhaps("remove")
        super().remove(path)
