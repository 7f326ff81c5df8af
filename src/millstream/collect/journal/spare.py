"""Disk space that is reserved for when the disk is full."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

from millstream.collect.journal.disk import Disk

_BYTES = 64 << 10  # far more than a segment header
FULL = (errno.ENOSPC, errno.EDQUOT)


class SpareFile:
    """A file of zeros beside the segments. Deleting it makes room for a new segment.

    The newest segment is deleted only after a newer one has its bookmarks. Without this file, a
    disk that is full of one segment would stay full, although Kafka has all of its events.
    """

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._path = folder / "spare"
        self._disk = disk
        self._exists = self._path.is_file() and self._path.stat().st_size == _BYTES

    def create(self) -> None:
        """Create the file, if it is missing and the disk has room. Blocks."""
        if self._exists:
            return
        try:
            self._disk.remove(self._path)
            descriptor = self._disk.create(self._path)
            try:
                self._disk.write(descriptor, bytes(_BYTES))
                self._disk.sync(descriptor)
                self._exists = True
            finally:
                self._disk.close(descriptor)
        except OSError:
            self.delete()

    def delete(self) -> bool:
        """Delete the file; whether that made room."""
        existed, self._exists = self._exists, False
        with contextlib.suppress(OSError):
            self._disk.remove(self._path)
        return existed
