"""Damaged entries of the journals in a home: accepted events that are lost.

`millstream failed` lists them with the failed events. Their ids are
`damaged-<worker>-<segment>-<offset>`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.collect.journal import DamagedPiece, DamageStore
    from millstream.runtime.home import Home
    from millstream.values.dead_letter import Action
    from millstream.values.report import JournalDamage

PREFIX = "damaged-"


@dataclass(frozen=True, slots=True)
class DamagedEntry:
    """A damaged piece of a worker's journal: a dead letter."""

    id: str
    store: DamageStore
    piece: DamagedPiece

    @property
    def at(self) -> int:
        return self.piece.found_at

    @property
    def reason(self) -> str:
        """Why it is damaged, and how much is lost."""
        piece = self.piece
        counted = [f"{count:,} events of {name}" for name, count in (piece.events or {}).items()]
        if piece.unread:
            counted.append(f"{piece.unread:,} entries that cannot be read")
        held = " and ".join(counted) or f"{piece.entries:,} entries"
        return f"lost: {held}; {piece.reason}"

    @property
    def value(self) -> bytes:
        return self.store.data(self.piece)

    @property
    def details(self) -> dict[str, Any]:
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

    @property
    def facts(self) -> dict[str, str]:
        return {name: str(value) for name, value in self.details.items()}


class DamagedEntries:
    """All damaged entries of a home that lost accepted events. Blocks."""

    actions: tuple[Action, ...] = ("drop",)

    def __init__(self, home: Home) -> None:
        self._home = home

    def list(self, since: int = 0) -> Iterator[DamagedEntry]:
        """Those that were found from this time on and are not acknowledged."""
        for entry in self._all():
            if not entry.piece.acknowledged_at and entry.at >= since:
                yield entry

    def get(self, id: str) -> DamagedEntry:  # noqa: A002
        """The one with this id, acknowledged or not; MillstreamError if there is none."""
        for entry in self._all():
            if entry.id == id:
                return entry
        raise MillstreamError(
            f"there is no damaged entry {id!r} in {self._home.journal}",
            remedy="`millstream failed list` lists the entries that are there",
        )

    def drop(self, entries: Iterable[DamagedEntry]) -> int:
        """Delete their bytes and record that the loss is acknowledged; returns how many."""
        return sum(entry.store.acknowledge([entry.piece.name]) for entry in entries)

    def _all(self) -> Iterator[DamagedEntry]:
        from millstream.collect.journal import DamageStore

        for folder in self._home.damaged:
            store = DamageStore(folder)
            for piece in store.lost():
                yield DamagedEntry(f"{PREFIX}{folder.parent.name}-{piece.name}", store, piece)


def damage_counts(home: Home) -> JournalDamage:
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
