"""A child's log file, which is rotated when it is too large."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from pathlib import Path
from typing import BinaryIO

from millstream.runtime.home import private_opener

MAX_BYTES = 10_000_000


def open_log(path: Path) -> BinaryIO:
    """Opens a log for a child to append to; `rotate` may empty it while the child writes."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    rotate(path)
    return open(path, "ab", opener=private_opener)


def rotate(path: Path, max_bytes: int = MAX_BYTES) -> bool:
    """Move the content of a file that is too large to `<name>.1`; returns whether it did.

    The child keeps its file open, so the file is copied and emptied, not renamed: lines written in
    between are lost. On a full disk there is no room for the copy, and nothing is done.
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
    """The last lines of a log; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 256 * 1024))
            last = deque(file, maxlen=lines)
    except OSError:
        return []
    return [line.decode(errors="replace").rstrip("\n") for line in last]


def lines_since(path: Path, start: int) -> list[str]:
    """The lines after the first `start` bytes."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(1 << 20).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
