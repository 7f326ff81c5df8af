"""A child's output in a file that cannot grow without end."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from pathlib import Path
from typing import BinaryIO

from millstream.runtime.home import private_opener

MAX_BYTES = 10_000_000


def open_log(path: Path) -> BinaryIO:
    """The file to hand to a child: it appends, so `bound` may cut it while the child writes."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    bound(path)
    return open(path, "ab", opener=private_opener)


def bound(path: Path, max_bytes: int = MAX_BYTES) -> bool:
    """Move a file that has become too long to `<name>.1` and empty it; whether that was done.

    The child keeps its open file, so it is copied and cut, not renamed: lines written in between
    are lost. A full disk has no room for the copy; it bounds the log by itself until it has.
    """
    try:
        if path.stat().st_size <= max_bytes:
            return False
    except FileNotFoundError:
        return False
    older = path.with_name(path.name + ".1")
    try:
        with path.open("rb") as source, open(older, "wb", opener=private_opener) as target:
            source.seek(-max_bytes, os.SEEK_END)
            while block := source.read(1 << 20):
                target.write(block)
    except OSError:
        with contextlib.suppress(OSError):
            older.unlink(missing_ok=True)
        return False
    os.truncate(path, 0)
    return True


def tail(path: Path, lines: int = 20) -> list[str]:
    """The last lines of a log, or none if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 256 * 1024))
            last = deque(file, maxlen=lines)
    except OSError:
        return []
    return [line.decode(errors="replace").rstrip("\n") for line in last]


def since(path: Path, start: int) -> list[str]:
    """The lines written after the file was `start` bytes long."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(1 << 20).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
