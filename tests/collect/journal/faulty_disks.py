"""Disks that fail on demand, or lose what was not synced."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from millstream.collect.journal.disk import Disk


class FailingDisk(Disk):
    """A real disk, except that the operations in `failing` raise their error."""

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


class LosingDisk(FailingDisk):
    """A disk whose machine may lose power: it knows what was not synced."""

    def __init__(self) -> None:
        super().__init__()
        self._synced: dict[str, int] = {}  # bytes of each file that are safe; not named: all
        self._new: set[str] = set()  # names that may be gone
        self._removed: dict[str, bytes] = {}  # files that may be back
        self._cut: dict[str, bytes] = {}  # files that may be as long as they were
        self._strike: Callable[[], None] | None = None
        self._operations = 0

    def arm(self, operations: int, strike: Callable[[], None]) -> None:
        """Call a function once, in the writer thread, after so many more operations."""
        self._operations, self._strike = operations, strike

    def lose_power(self, folder: Path, image: Path, chance: Random) -> None:
        """A copy of the folder as it may be after a restart of the machine."""
        image.mkdir()
        shutil.copy(folder / "identity", image)
        if (folder / "damaged").is_dir():
            shutil.copytree(folder / "damaged", image / "damaged")
        back = {name: data for name, data in self._removed.items() if chance.random() < 0.5}
        for name, data in (segments(folder) | back).items():
            if name in self._new and chance.random() < 0.5:
                continue
            if name in self._cut and chance.random() < 0.5:
                data = self._cut[name]
            (image / name).write_bytes(_torn(data, self._synced.get(name, len(data)), chance))

    def _perhaps(self, operation: str) -> None:
        if self._strike is not None:
            self._operations -= 1
            if self._operations < 0:
                strike, self._strike = self._strike, None
                strike()
        super()._perhaps(operation)

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        self._new.add(path.name)
        self._synced[path.name] = 0
        return descriptor

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        name = _name(descriptor)
        self._synced[name] = os.fstat(descriptor).st_size
        self._cut.pop(name, None)

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        self._new.clear()
        self._removed.clear()

    def truncate(self, descriptor: int, size: int) -> None:
        before = Path(f"/proc/self/fd/{descriptor}").read_bytes()
        super().truncate(descriptor, size)
        self._cut[_name(descriptor)] = before

    def remove(self, path: Path) -> None:
        data = path.read_bytes() if path.suffix == ".segment" else None
        super().remove(path)
        if data is not None:
            self._removed[path.name] = data


def segments(folder: Path) -> dict[str, bytes]:
    """The files, of which some may be removed at the same time, oldest first.

    Read from the newest one on: so none is there without those that came after it.
    """
    found = {}
    for path in sorted(folder.glob("*.segment"), reverse=True):
        with contextlib.suppress(FileNotFoundError):
            found[path.name] = path.read_bytes()
    return dict(sorted(found.items()))


def _torn(data: bytes, synced: int, chance: Random) -> bytes:
    """A part of what was not synced; a page in the middle may be missing."""
    kept = bytearray(data[: chance.randint(synced, max(synced, len(data)))])
    if len(kept) > synced and chance.random() < 0.3:
        begin = chance.randrange(synced, len(kept))
        end = chance.randint(begin, len(kept))
        kept[begin:end] = bytes(end - begin)
    return bytes(kept)


def _name(descriptor: int) -> str:
    return Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
