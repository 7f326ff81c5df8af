"""Real disks with little space: each is a tmpfs, which only root can mount."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[SmallDisk]:
    """Mount a disk of so many bytes at this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class SmallDisk:
    """A mounted disk that can be filled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Use up all free space."""
        with contextlib.suppress(OSError), self._ballast.open("wb", buffering=0) as file:
            while file.write(bytes(4096)) == 4096:
                pass

    def make_room(self) -> None:
        """Free that space again."""
        self._ballast.unlink()

    def grow(self, size: int) -> None:
        _mount("-o", f"remount,size={size}", str(self.folder))

    @contextlib.contextmanager
    def read_only(self, folder: Path) -> Iterator[None]:
        """A folder of it that cannot be written to any more, but by who has a file open there."""
        _mount("--bind", str(folder), str(folder))
        try:
            _mount("-o", "remount,bind,ro", str(folder))
            yield
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(
            f"cannot mount a small disk: {done.stderr.strip()}; run the tests as root, or in a "
            "container with the capability SYS_ADMIN",
            pytrace=False,
        )
