"""What is entered into a view's ledger. Knows no Kafka: final rows in, entries out.

A row's amounts are asserted when it becomes final. When a newer one corrects it, what was asserted
is retracted and the new amounts are asserted. So whoever adds up the entries has, at any moment,
the amounts of the rows that are final. Each names the late events that no entry named before.

When a view was computed anew, its rows are held against what stands in the ledger: what is the
same stays, what differs is corrected, what has no row any more is retracted. Rows that lack events,
because the log has them no more, say nothing against what was entered when they were there.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from millstream.analyze.triggers import rows
from millstream.analyze.triggers.rows import Stage
from millstream.values.clock import to_iso
from millstream.values.hidden_columns import LATE
from millstream.values.ledger_entry import Amounts, EntryKind, LedgerEntry, identify


class Asserted(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the ledger says of one key, and how long it must be known."""

    id: str
    generation: str
    revision: int
    amounts: dict[str, Any]
    late: tuple[str, ...] = ()
    ended: int | None = None
    partition: int = 0

    @property
    def stands(self) -> bool:
        """Whether an assertion stands, and was not just taken back."""
        return bool(self.amounts)


class Edition(msgspec.Struct, frozen=True, omit_defaults=True):
    """A view that was computed anew: what its rows mean to what was entered before."""

    topic: str
    whole_from: int = 0  # windows that begin earlier may lack events; milliseconds since the epoch


@dataclass(frozen=True, slots=True)
class LedgerSpec:
    """What a ledger is about."""

    view: str
    generation: str  # of the query: revisions of two generations cannot be compared
    columns: tuple[str, ...]


class Ledger:
    """One view's ledger. Not thread-safe; never blocks."""

    def __init__(self, books: LedgerSpec, forget_ms: int) -> None:
        """`forget_ms`: how long after its end a row may come again, made anew from old events."""
        self._books = books
        self._forget_ms = forget_ms
        self._asserted: dict[bytes, Asserted] = {}
        self._ended: list[tuple[int, bytes]] = []
        self._changed: dict[bytes, None] = {}
        self.edition: Edition | None = None  # None: the first one

    def recall(self, key: bytes, value: bytes) -> None:
        """Take back a state that `take` gave out; before any row."""
        held = msgspec.convert(rows.decode(value, exact=True), Asserted)
        self._asserted[key] = held
        if held.ended is not None:
            heapq.heappush(self._ended, (held.ended, key))

    def enter(self, key: bytes, value: bytes, now: int, partition: int = 0) -> list[LedgerEntry]:
        """What to enter for a row, as it is shown: nothing, unless it is final and news."""
        try:
            row = rows.decode(value)
        except msgspec.DecodeError:
            return []
        mark = rows.mark(row)
        if mark is None or rows.stage(row) is Stage.PROVISIONAL:
            return []
        held, amounts = self._asserted.get(key), rows.amounts(value, self._books.columns)
        late = tuple(str(each) for each in row.get(LATE) or ())
        if held is None:
            entries = [self._assert(key, mark.revision, amounts, late, now)]
        elif not held.stands:
            entries = [self._assert(key, mark.revision, amounts, late, now, held.id)]
        elif held.generation == self._books.generation:
            if mark.revision <= held.revision:
                return []
            entries = self._correct(key, held, mark.revision, amounts, late, now)
        elif self.lacks_events(key):
            return []
        elif amounts == held.amounts:  # it was computed anew, perhaps by another query
            entries = []
        else:
            entries = self._correct(key, held, mark.revision, amounts, late, now)
        asserted = entries[-1].id if entries else held.id if held is not None else ""
        self._asserted[key] = Asserted(
            asserted, self._books.generation, mark.revision, amounts, late, partition=partition
        )
        self._changed[key] = None
        return entries

    def settle(self, now: int) -> list[tuple[LedgerEntry, bytes, int]]:
        """What to retract, by key and partition, of rows that a view computed anew has not.

        Once all that it has shown before it was served is entered.
        """
        if self.edition is None:
            return []
        found = []
        for key, held in self._asserted.items():
            is_told = held.generation == self._books.generation or held.ended is not None
            if is_told or not held.stands or self.lacks_events(key):
                continue
            entry = self._retract(key, held, (), now)
            found.append((entry, key, held.partition))
            self._asserted[key] = Asserted(
                entry.id, self._books.generation, 0, {}, held.late, partition=held.partition
            )
            self._changed[key] = None
        return found

    def lacks_events(self, key: bytes) -> bool:
        """Whether the row as it is now may have fewer events than the one that was entered."""
        if self.edition is None or not self.edition.whole_from:
            return False
        windows = [each for each in msgspec.json.decode(key) if isinstance(each, dict)]
        starts = [datetime.fromisoformat(each["start"]) for each in windows if "start" in each]
        return any(each.timestamp() * 1000 < self.edition.whole_from for each in starts)

    def knows(self, key: bytes) -> bool:
        """Whether anything was entered of a key; of what ended long ago that is forgotten."""
        return key in self._asserted

    def leaves(self, key: bytes) -> bool:
        """Whether what was entered stays as it is, though the view as it is now has no such row.

        So do entries of another query's rows, unless the view was computed anew as a whole, and
        those of rows that had ended by then.
        """
        held = self._asserted.get(key)
        if held is None or held.generation == self._books.generation:
            return False
        return self.edition is None or held.ended is not None or self.lacks_events(key)

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
    ) -> list[LedgerEntry]:
        known = set(held.late)
        reason = tuple(each for each in late if each not in known)
        # A query that was changed back may come to the same revision again.
        other = held.id if held.generation != self._books.generation else ""
        retraction = self._retract(key, held, reason, now)
        why = tuple(retraction.reason)
        return [retraction, self._assert(key, revision, amounts, why, now, other)]

    def _retract(self, key: bytes, held: Asserted, late: tuple[str, ...], now: int) -> LedgerEntry:
        is_anew = self.edition is not None and held.generation != self._books.generation
        reason = (f"rebuild:{self.edition.topic}", *late) if self.edition and is_anew else late
        name = identify(held.id, "retraction")
        return _entry(name, key, "retraction", held.amounts, reason, now)

    def _assert(
        self,
        key: bytes,
        revision: int,
        amounts: Amounts,
        reason: tuple[str, ...],
        now: int,
        after: str = "",
    ) -> LedgerEntry:
        parts = (self._books.view, key.decode(), str(revision), "assertion", after)
        return _entry(identify(*parts), key, "assertion", amounts, reason, now)


def _entry(
    name: str, key: bytes, kind: EntryKind, amounts: Amounts, reason: tuple[str, ...], now: int
) -> LedgerEntry:
    values: list[Any] = msgspec.json.decode(key)
    return LedgerEntry(name, values, kind, amounts, list(reason), to_iso(now))


_ENCODER = msgspec.json.Encoder(decimal_format="number")
