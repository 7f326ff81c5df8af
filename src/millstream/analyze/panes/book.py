"""What is entered into a view's ledger. Knows no Kafka: final rows in, entries out.

A row's amounts are asserted when it becomes final. When a newer one corrects it, what was asserted
is retracted and the new amounts are asserted. So whoever adds up the entries has, at any moment,
the amounts of the rows that are final. Each names the late events that no entry named before.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from millstream.analyze.panes import rows
from millstream.analyze.panes.rows import Stage
from millstream.ledger import Amounts, Entry, Kind, identify

_LATE = "_late"  # the row's column with the ids of the late events that are in it


class Asserted(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the ledger says of one key, and how long it must be known."""

    id: str
    generation: str
    revision: int
    amounts: dict[str, Any]
    late: tuple[str, ...] = ()
    ended: int | None = None


@dataclass(frozen=True, slots=True)
class Books:
    """What a ledger is about."""

    view: str
    generation: str  # of the query: revisions of two generations cannot be compared
    columns: tuple[str, ...]


class Book:
    """One view's ledger. Not thread-safe; never blocks."""

    def __init__(self, books: Books, forget_ms: int) -> None:
        """`forget_ms`: how long after its end a row may come again, made anew from old events."""
        self._books = books
        self._forget_ms = forget_ms
        self._asserted: dict[bytes, Asserted] = {}
        self._ended: list[tuple[int, bytes]] = []
        self._changed: dict[bytes, None] = {}

    def recall(self, key: bytes, value: bytes) -> None:
        """Take back a state that `take` gave out; before any row."""
        held = msgspec.convert(rows.decode(value, exact=True), Asserted)
        self._asserted[key] = held
        if held.ended is not None:
            heapq.heappush(self._ended, (held.ended, key))

    def enter(self, key: bytes, value: bytes, now: int) -> list[Entry]:
        """What to enter for a row, as it is shown: nothing, unless it is final and news."""
        try:
            row = rows.decode(value)
        except msgspec.DecodeError:
            return []
        mark = rows.mark(row)
        if mark is None or rows.stage(row) is Stage.PROVISIONAL:
            return []
        held, amounts = self._asserted.get(key), rows.amounts(value, self._books.columns)
        late = tuple(str(each) for each in row.get(_LATE) or ())
        if held is None:
            entries = [self._assert(key, mark.revision, amounts, late, now)]
        elif held.generation == self._books.generation:
            if mark.revision <= held.revision:
                return []
            entries = self._correct(key, held, mark.revision, amounts, late, now)
        elif amounts == held.amounts:  # the query was changed, this amount was not
            entries = []
        else:
            entries = self._correct(key, held, mark.revision, amounts, late, now)
        asserted = entries[-1].id if entries else held.id if held is not None else ""
        self._asserted[key] = Asserted(
            asserted, self._books.generation, mark.revision, amounts, late
        )
        self._changed[key] = None
        return entries

    def end(self, key: bytes, now: int) -> None:
        """The row is gone; its entries stay, and so does what they say, for a time."""
        held = self._asserted.get(key)
        if held is not None and held.ended is None:
            self._asserted[key] = msgspec.structs.replace(held, ended=now)
            self._changed[key] = None
            heapq.heappush(self._ended, (now, key))

    def tick(self, now: int) -> None:
        """Forget what ended so long ago that nothing can bring it back."""
        while self._ended and self._ended[0][0] + self._forget_ms <= now:
            ended, key = heapq.heappop(self._ended)
            if key in self._asserted and self._asserted[key].ended == ended:
                del self._asserted[key]
                self._changed[key] = None

    def take(self) -> list[tuple[bytes, bytes | None]]:
        """The states to write with the entries that were given out since."""
        changed, self._changed = self._changed, {}
        return [
            (key, None if (held := self._asserted.get(key)) is None else _ENCODER.encode(held))
            for key in changed
        ]

    def _correct(
        self,
        key: bytes,
        held: Asserted,
        revision: int,
        amounts: Amounts,
        late: tuple[str, ...],
        now: int,
    ) -> list[Entry]:
        known = set(held.late)
        reason = tuple(each for each in late if each not in known)
        # A query that was changed back may come to the same revision again.
        other = held.id if held.generation != self._books.generation else ""
        return [
            _entry(identify(held.id, "retraction"), key, "retraction", held.amounts, reason, now),
            self._assert(key, revision, amounts, reason, now, other),
        ]

    def _assert(
        self,
        key: bytes,
        revision: int,
        amounts: Amounts,
        reason: tuple[str, ...],
        now: int,
        after: str = "",
    ) -> Entry:
        parts = (self._books.view, key.decode(), str(revision), "assertion", after)
        return _entry(identify(*parts), key, "assertion", amounts, reason, now)


def _entry(
    name: str, key: bytes, kind: Kind, amounts: Amounts, reason: tuple[str, ...], now: int
) -> Entry:
    at = datetime.fromtimestamp(now / 1000, UTC).isoformat(timespec="milliseconds")
    values: list[Any] = msgspec.json.decode(key)
    return Entry(name, values, kind, amounts, list(reason), at.replace("+00:00", "Z"))


_ENCODER = msgspec.json.Encoder(decimal_format="number")
