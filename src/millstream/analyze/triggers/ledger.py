"""A view's ledger: final rows in, entries out. Without Kafka.

A row's amounts are asserted when it becomes final. When a newer row corrects it, the asserted
amounts are retracted and the new ones are asserted. So the sum of all entries is, at any moment,
the amounts of the final rows. Each entry names the late events that no earlier entry named.

After a rebuild, the view's rows are compared with the ledger: equal amounts stay, different ones
are corrected, and amounts without a row are retracted. A row that lacks events, because the log no
longer has them, changes nothing that was entered while they were there.
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

_ENCODER = msgspec.json.Encoder(decimal_format="number")


class Asserted(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the ledger has for one key. It is stored: field names cannot change."""

    id: str  # of the newest entry
    generation: str
    revision: int
    amounts: dict[str, Any]  # empty: retracted
    late: tuple[str, ...] = ()
    ended: int | None = None  # when the row was deleted; milliseconds since the epoch
    partition: int = 0


class Edition(msgspec.Struct, frozen=True, omit_defaults=True):
    """A rebuilt view. It is stored: field names cannot change."""

    topic: str
    whole_from: int = 0  # windows that begin earlier may lack events; milliseconds since the epoch


@dataclass(frozen=True, slots=True)
class LedgerSpec:
    """Which columns of which view a ledger adds up."""

    view: str
    generation: str  # of the query: revisions of two generations cannot be compared
    columns: tuple[str, ...]


class Ledger:
    """One view's ledger. Not thread-safe; never blocks."""

    def __init__(self, spec: LedgerSpec, forget_ms: int) -> None:
        """`forget_ms`: how long after its deletion a row may come again, made from old events."""
        self._spec = spec
        self._forget_ms = forget_ms
        self._asserted: dict[bytes, Asserted] = {}
        self._deleted: list[tuple[int, bytes]] = []
        self._changed: dict[bytes, None] = {}
        self.edition: Edition | None = None  # None: the first one

    def restore(self, key: bytes, value: bytes) -> None:
        """Restore a state that `changed_states` returned; before any row."""
        held = msgspec.convert(rows.decode(value, exact=True), Asserted)
        self._asserted[key] = held
        if held.ended is not None:
            heapq.heappush(self._deleted, (held.ended, key))

    def apply(self, key: bytes, value: bytes, now: int, partition: int = 0) -> list[LedgerEntry]:
        """The entries for a row as it is shown; none unless it is final and new."""
        try:
            row = rows.decode(value)
        except msgspec.DecodeError:
            return []
        version = rows.version(row)
        if version is None or rows.stage(row) is Stage.PROVISIONAL:
            return []
        held = self._asserted.get(key)
        amounts = rows.amounts(rows.decode(value, exact=True), self._spec.columns)
        late = tuple(str(each) for each in row.get(LATE) or ())
        if held is None:
            entries = [self._assert(key, version.revision, amounts, late, now)]
        elif not held.amounts:
            entries = [self._assert(key, version.revision, amounts, late, now, held.id)]
        elif self._is_ours(held):
            if version.revision <= held.revision:
                return []
            entries = self._correct(key, held, version.revision, amounts, late, now)
        elif self.lacks_events(key):
            return []
        elif amounts == held.amounts:  # it was rebuilt, perhaps by another query
            entries = []
        else:
            entries = self._correct(key, held, version.revision, amounts, late, now)
        newest = entries[-1].id if entries else held.id if held is not None else ""
        self._assign(
            key,
            Asserted(
                newest,
                self._spec.generation,
                version.revision,
                amounts,
                late,
                partition=partition,
            ),
        )
        return entries

    def retract_missing(self, now: int) -> list[tuple[LedgerEntry, bytes, int]]:
        """Retractions, with key and partition, for rows that a rebuilt view no longer has.

        To be called once all rows that it showed before it was served are entered.
        """
        if self.edition is None:
            return []
        found = []
        for key, held in self._asserted.items():
            if self._is_ours(held) or held.ended is not None:
                continue
            if not held.amounts or self.lacks_events(key):
                continue
            entry = self._retract(key, held, (), now)
            found.append((entry, key, held.partition))
            generation = self._spec.generation
            self._assign(
                key, Asserted(entry.id, generation, 0, {}, held.late, partition=held.partition)
            )
        return found

    def lacks_events(self, key: bytes) -> bool:
        """Whether the row may now have fewer events than the one that was entered."""
        if self.edition is None or not self.edition.whole_from:
            return False
        windows = [each for each in msgspec.json.decode(key) if isinstance(each, dict)]
        starts = [datetime.fromisoformat(each["start"]) for each in windows if "start" in each]
        return any(each.timestamp() * 1000 < self.edition.whole_from for each in starts)

    def has_entries(self, key: bytes) -> bool:
        """Whether entries of a key are known. Those of long deleted rows are forgotten."""
        return key in self._asserted

    def keeps(self, key: bytes) -> bool:
        """Whether a key's entries stay although the view no longer has the row.

        Entries of another query's rows stay, unless the whole view was rebuilt. So do those of
        rows that were deleted before that.
        """
        held = self._asserted.get(key)
        if held is None or self._is_ours(held):
            return False
        return self.edition is None or held.ended is not None or self.lacks_events(key)

    def delete(self, key: bytes, now: int) -> None:
        """The row was deleted. Its entries stay; their state stays for `forget_ms`."""
        held = self._asserted.get(key)
        if held is not None and held.ended is None:
            self._assign(key, msgspec.structs.replace(held, ended=now))
            heapq.heappush(self._deleted, (now, key))

    def tick(self, now: int) -> None:
        """Forget rows that were deleted so long ago that they cannot come again."""
        while self._deleted and self._deleted[0][0] + self._forget_ms <= now:
            deleted, key = heapq.heappop(self._deleted)
            if key in self._asserted and self._asserted[key].ended == deleted:
                del self._asserted[key]
                self._changed[key] = None

    def changed_states(self) -> list[tuple[bytes, bytes | None]]:
        """The states to write together with the entries returned since the last call."""
        changed, self._changed = self._changed, {}
        return [
            (key, None if (held := self._asserted.get(key)) is None else _ENCODER.encode(held))
            for key in changed
        ]

    def _is_ours(self, held: Asserted) -> bool:
        return held.generation == self._spec.generation

    def _assign(self, key: bytes, asserted: Asserted) -> None:
        self._asserted[key] = asserted
        self._changed[key] = None

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
        retraction = self._retract(key, held, tuple(e for e in late if e not in known), now)
        # A query that was changed back may reach the same revision again.
        after = "" if self._is_ours(held) else held.id
        reason = tuple(retraction.reason)
        return [retraction, self._assert(key, revision, amounts, reason, now, after)]

    def _retract(self, key: bytes, held: Asserted, late: tuple[str, ...], now: int) -> LedgerEntry:
        reason = late
        if self.edition is not None and not self._is_ours(held):
            reason = (f"rebuild:{self.edition.topic}", *late)
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
        parts = (self._spec.view, key.decode(), str(revision), "assertion", after)
        return _entry(identify(*parts), key, "assertion", amounts, reason, now)


def _entry(
    name: str, key: bytes, kind: EntryKind, amounts: Amounts, reason: tuple[str, ...], now: int
) -> LedgerEntry:
    values: list[Any] = msgspec.json.decode(key)
    return LedgerEntry(name, values, kind, amounts, list(reason), to_iso(now))
