"""Which worker reads which source, and from where on.

A source's bookmark lies in the journal of the worker that read it. Workers can become more or
fewer between two starts, so a source may move to another journal, and an older bookmark stay behind
in the one it left. Bookmarks cannot be compared, so their names tell which is the newest: each move
gives the name a higher number. What was not yet read after a move is handed over by value; that is
safe at any moment, since the next start finds it again in the journal where it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

_MOVED = "@"  # no stream's name has it


class Duty(msgspec.Struct, frozen=True):
    """One stream's source, as its worker must know it."""

    worker: int
    name: str  # under which its bookmarks are kept in that worker's journal
    handed: bytes | None = None  # the bookmark to begin with, as long as there is none of that name


class _Held(NamedTuple):
    moves: int
    journal: int
    bookmark: bytes


def assign(
    streams: Iterable[str], workers: int, journals: Mapping[int, Mapping[str, bytes]]
) -> dict[str, Duty]:
    """Each stream's worker, spread evenly; a source moves only if it must.

    `journals` are the bookmarks of every journal in the home, by its number: a worker's own has its
    number, and those beyond belonged to workers that are no more.
    """
    names = list(streams)
    newest = {name: _newest(name, journals) for name in names}
    least, more = divmod(len(names), workers)  # so many have one more than the others
    readers: dict[str, int] = {}
    load = [0] * workers
    for name in names:
        held = newest[name]
        if held is None or held.journal >= workers:
            continue
        has = load[held.journal]
        if has < least or (has == least and more):
            more -= has == least
            readers[name] = held.journal
            load[held.journal] += 1
    for name in names:
        if name not in readers:
            readers[name] = load.index(min(load))
            load[readers[name]] += 1
    return {name: _duty(name, readers[name], newest[name]) for name in names}


def _duty(name: str, worker: int, newest: _Held | None) -> Duty:
    if newest is None:
        return Duty(worker, name)
    if newest.journal == worker:
        return Duty(worker, _named(name, newest.moves))
    return Duty(worker, _named(name, newest.moves + 1), newest.bookmark)


def _newest(stream: str, journals: Mapping[int, Mapping[str, bytes]]) -> _Held | None:
    held = [
        _Held(_moves(name), number, bookmark)
        for number, bookmarks in journals.items()
        for name, bookmark in bookmarks.items()
        if name.partition(_MOVED)[0] == stream
    ]
    return max(held, default=None)


def _moves(name: str) -> int:
    return int(name.partition(_MOVED)[2] or 0)


def _named(stream: str, moves: int) -> str:
    return f"{stream}{_MOVED}{moves}" if moves else stream
