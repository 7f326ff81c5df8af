"""A child's output in a file that cannot grow without end."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import BinaryIO

MAX_BYTES = 10_000_000


def open_log(path: Path) -> BinaryIO:
    """The file to hand to a child: it appends, so `bound` may cut it while the child writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    bound(path)
    return path.open("ab")


def bound(path: Path, max_bytes: int = MAX_BYTES) -> bool:
    """Move a file that has become too long to `<name>.1` and empty it; whether that was necessary.

    The child keeps its open file, so it is copied and cut, not renamed: lines written in between
    are lost.
    """
    try:
        if path.stat().st_size <= max_bytes:
            return False
    except FileNotFoundError:
        return False
    older = path.with_name(path.name + ".1")
    with path.open("rb") as source, older.open("wb") as target:
        source.seek(-max_bytes, os.SEEK_END)
        while block := source.read(1 << 20):
            target.write(block)
    os.truncate(path, 0)
    return True


def tail(path: Path, lines: int = 20) -> list[str]:
    """The last lines of a log, or none if there is no log."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 256 * 1024))
            last = deque(file, maxlen=lines)
    except FileNotFoundError:
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
