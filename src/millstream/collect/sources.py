"""The sources that a collector process reads, and the bookmark that each one continues from.

A bookmark is stored in the journal of the process that read the source. The number of processes can
change between two starts. Then a source moves to another process, and its old bookmark stays behind
in the journal that it left. Bookmarks have no order. So the name of a bookmark has a number that
grows with each move, and the highest number is the newest bookmark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

_MOVED = "@"  # no stream's name has it


class AssignedSource(NamedTuple):
    """A stream whose source this process reads."""

    stream: str
    bookmark_name: str  # in this process's journal
    bookmark: bytes | None = None  # where to start, until the journal has a bookmark of that name


def assign_sources(
    streams: Sequence[str], worker: int, journals: Mapping[int, Mapping[str, bytes]]
) -> list[AssignedSource]:
    """Where process `worker` continues each of its `streams`.

    `journals` has the bookmarks of every journal in the home, by the journal's number.
    """
    return [_continue(stream, worker, journals) for stream in streams]


def _continue(
    stream: str, worker: int, journals: Mapping[int, Mapping[str, bytes]]
) -> AssignedSource:
    held = [
        (_moves(name), number, bookmark)
        for number, bookmarks in journals.items()
        for name, bookmark in bookmarks.items()
        if name.partition(_MOVED)[0] == stream
    ]
    if not held:
        return AssignedSource(stream, stream)
    moves, journal, bookmark = max(held)
    if journal == worker:
        return AssignedSource(stream, _name(stream, moves))
    return AssignedSource(stream, _name(stream, moves + 1), bookmark)


def _moves(name: str) -> int:
    return int(name.partition(_MOVED)[2] or 0)


def _name(stream: str, moves: int) -> str:
    return f"{stream}{_MOVED}{moves}" if moves else stream
