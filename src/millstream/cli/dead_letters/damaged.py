"""Damaged entries of the journals in a home: accepted events that are lost, listed with the failed.

Their ids are `damaged-<worker>-<segment>-<offset>`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from millstream.cli.dead_letters.selection import print_line, print_raw, print_whole
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.collect.journal import Damaged, DamageStore
    from millstream.runtime.home import Home
    from millstream.values.report import JournalDamage

PREFIX = "damaged-"


class Lost(NamedTuple):
    """A damaged piece of a worker's journal."""

    id: str
    store: DamageStore
    piece: Damaged

    @property
    def facts(self) -> dict[str, object]:
        """What is known of it."""
        piece = self.piece
        return {
            "place": str(self.store.folder.parent),
            "bytes": piece.size,
            "first_sequence": piece.first,
            "entries": piece.entries,
            "events": piece.events or {},
            "entries_not_readable": piece.unread,
            "acknowledged_at": piece.acknowledged_at,
        }


def lost_in(home: Home) -> Iterator[Lost]:
    """All that the journals of this home have lost, acknowledged or not."""
    from millstream.collect.journal import DamageStore

    for folder in home.damaged:
        store = DamageStore(folder)
        for piece in store.lost():
            yield Lost(f"{PREFIX}{folder.parent.name}-{piece.name}", store, piece)


def damage_here(home: Home) -> JournalDamage:
    """The counts over all journals of this home."""
    from millstream.collect.journal import DamageStore
    from millstream.values.report import JournalDamage

    total = JournalDamage()
    for folder in home.damaged:
        if (counts := DamageStore(folder).counts()) is not None:
            total.entries += counts.entries
            total.events += counts.events
            total.bytes += counts.bytes
            total.unread += counts.unread
            total.acknowledged += counts.acknowledged
    return total


def chosen_damage(home: Home, since: int, reason: str) -> list[Lost]:
    """Those that nobody has acknowledged, found since then, with that text in the reason."""
    return [
        one
        for one in lost_in(home)
        if not one.piece.acknowledged_at
        and one.piece.found_at >= since
        and reason.lower() in one.piece.reason.lower()
    ]


def damage_of(home: Home, name: str) -> Lost:
    """The one of that id; MillstreamError if there is none."""
    for one in lost_in(home):
        if one.id == name:
            return one
    raise MillstreamError(
        f"there is no damaged entry {name!r} in {home.journal}",
        remedy="`millstream failed list` shows those that are there",
    )


def list_damage(found: Iterable[Lost], as_json: bool) -> None:
    """A line for each: what was lost, where, and the bytes that are left."""
    for one in found:
        data = one.store.data(one.piece)
        line = as_json or not sys.stdout.isatty()
        print_line(one.id, one.piece.found_at, words_of(one.piece), data, line, **one.facts)


def show_damage(one: Lost, raw: bool, as_json: bool) -> None:
    """All that is known of one, and its bytes."""
    data = one.store.data(one.piece)
    if raw:
        print_raw(data)
    elif as_json:
        list_damage([one], True)
    else:
        facts = {name: str(value) for name, value in one.facts.items()}
        print_whole(one.id, one.piece.found_at, words_of(one.piece), facts, data)


def words_of(piece: Damaged) -> str:
    """The reason, and how much was lost."""
    counted = [f"{count:,} events of {name}" for name, count in (piece.events or {}).items()]
    if piece.unread:
        counted.append(f"{piece.unread:,} entries that cannot be read")
    held = " and ".join(counted) or f"{piece.entries:,} entries"
    return f"lost: {held}; {piece.reason}"


def acknowledge(found: Iterable[Lost]) -> int:
    """Drop their bytes, and note that the loss was acknowledged; how many."""
    return sum(one.store.acknowledge([one.piece.name]) for one in found)
