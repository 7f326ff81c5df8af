"""A little room that is kept back for the day on which the disk is full."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

from millstream.collect.journal.disk import Disk

_BYTES = 64 << 10  # far more than what a segment begins with
FULL = (errno.ENOSPC, errno.EDQUOT)


class SpareFile:
    """A file of zeros beside the segments; giving it up makes room to begin one.

    The newest segment is deleted only when there is another one behind it, which knows its
    bookmarks. A disk that one segment has filled alone would otherwise stay full for ever, although
    Kafka has everything in it.
    """

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._path = folder / "spare"
        self._disk = disk
        self._is_there = self._path.is_file() and self._path.stat().st_size == _BYTES

    def keep(self) -> None:
        """Have it again, if the disk has the room. Blocks."""
        if self._is_there:
            return
        try:
            self._disk.remove(self._path)
            descriptor = self._disk.create(self._path)
            try:
                self._disk.write(descriptor, bytes(_BYTES))
                self._disk.sync(descriptor)
                self._is_there = True
            finally:
                self._disk.close(descriptor)
        except OSError:
            self.give_up()

    def give_up(self) -> bool:
        """Whether there is more room now."""
        was_there, self._is_there = self._is_there, False
        with contextlib.suppress(OSError):
            self._disk.remove(self._path)
        return was_there
