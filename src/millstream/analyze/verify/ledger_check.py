"""What was entered into a view's ledger, against its query in batch.

The law. An entry is owed once the query's topic says of a row that it is final or corrected, if the
row is shown at all (by `when …` it may never be). Take a key of which the newest row there, even
if it has expired since, is such a one and is the recomputed one: the same revision. The key's
assertions less its retractions must be that row's amounts. A key that the batch knows nothing of
must have a sum of 0, and so must one of which the book has nothing, as long as no entry is owed.

Left out is what the ledger rightly keeps though the view of now would say otherwise: amounts from
events that the log has no more, and those that a query entered which was another then. So is a row
that is not final: it may be a correction of one that was, entered as soon as that is written down.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import msgspec

from millstream.analyze.plan import ViewPlan
from millstream.analyze.triggers.ledger import Ledger, LedgerSpec
from millstream.analyze.triggers.processor import OutputProcessor
from millstream.analyze.triggers.rows import amounts as amounts_of
from millstream.analyze.triggers.tasks import output_topics
from millstream.analyze.verify.comparison import Comparison
from millstream.analyze.verify.follower import Follower
from millstream.analyze.verify.result import Difference, Part, Row
from millstream.analyze.verify.shown_check import Outcome, add_to, is_final, revision, settled
from millstream.log.consumer import bounds, read_range
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.values.ledger_entry import Amounts, add_entry, decode, name_of

_KEY = msgspec.json.Decoder(list[Any], float_hook=Decimal)  # as `ledger.decode` reads an entry's


class LedgerCheck(Follower):
    """The sums of one view's ledger, by key."""

    def __init__(
        self, log: LogSettings, app: str, plan: ViewPlan, books: LedgerSpec, same: Comparison
    ) -> None:
        self._log, self._books = log, books
        self._topics = output_topics(app, plan)
        self._same = replace(same, columns=books.columns)
        self._sums: dict[str, Amounts] = {}
        self._before: dict[str, Amounts] = {}
        self._keys: dict[str, bytes] = {}  # as the view's rows have them
        self._book = Ledger(books, 0)
        super().__init__(log, self._topics.ledger)

    def snapshot(self, patience: float) -> None:
        """Note the sums of now, before it is known up to where the log is recomputed."""
        self.catch_up(patience)
        with self._lock:
            self._before = {name: dict(sums) for name, sums in self._sums.items()}
        # Read after the entries: what was entered by a keeper is in there, too.
        work = OutputProcessor(self._topics, "", (), None, self._book)
        for record in _newest(self._log, self._topics.ledger_state):
            work.restore(record)

    def compare(
        self,
        wanted: Mapping[str, Row],
        written: Mapping[str, Row],
        was_shown: Callable[[str], bool],
        may_lack: bool,
        patience: float,
    ) -> tuple[Part, list[Difference]]:
        """Hold the sums against the recomputed rows.

        `written` are the query's newest rows as they come, also of keys that are gone. `was_shown`
        tells whether anything was shown of a key. With `may_lack`, the view may hold what the log
        has no more.
        """
        part, names = Part("ledger"), {_name(key): key for key in wanted}

        def look(name: str) -> Outcome:
            key = names.get(name)
            if key is None:
                return self._look_beside(name, may_lack)
            return self._look(name, key, wanted[key], written.get(key), was_shown)

        beside = {name for name, sums in self._before.items() if any(sums.values())} - names.keys()
        found = settled([*names, *beside], look, patience)
        compared = (each for name, each in found.items() if name in names or each is not None)
        return part, add_to(part, compared)

    def _look(
        self,
        name: str,
        key: str,
        recomputed: Row,
        written: Row | None,
        was_shown: Callable[[str], bool],
    ) -> Outcome:
        if written is None:
            return "gone"
        if revision(written) != revision(recomputed):
            return "moving" if revision(written) > revision(recomputed) else "behind"
        sums = self._sum(name)
        if not is_final(written) or not was_shown(key):
            is_ghost = any(self._before.get(name, {}).values()) and any(sums.values())
            if is_ghost and not self._book.has_entries(key.encode()):
                return Difference("not owed", key, sums, None, (), "ledger")
            return "not due"
        if self._book.keeps(key.encode()) and self._book.lacks_events(key.encode()):
            return "kept"
        amounts = amounts_of(recomputed, self._books.columns)
        if not sums:
            return Difference("missing", key, None, amounts, (), "ledger")
        if columns := self._same.differing(sums, amounts):
            return Difference("other sum", key, sums, amounts, columns, "ledger")
        return None

    def _look_beside(self, name: str, may_lack: bool) -> Outcome:
        """Of a key of which the batch knows nothing."""
        sums = self._sum(name)
        if not any(sums.values()):
            return None
        if may_lack:
            return "older"
        if self._book.keeps(self._keys[name]):
            return "kept"
        return Difference("not in the log", name, sums, None, (), "ledger")

    def _sum(self, name: str) -> Amounts:
        with self._lock:
            return dict(self._sums.get(name, {}))

    def _take(self, record: Record) -> None:
        self._news = time.monotonic()
        if record.value is not None:
            entry = decode(record.value)
            name = name_of(entry.key)
            self._keys.setdefault(name, record.key or name.encode())
            add_entry(self._sums.setdefault(name, {}), entry.kind, entry.amounts)


def _name(key: str) -> str:
    return name_of(_KEY.decode(key))


def _newest(log: LogSettings, topic: str) -> Iterable[Record]:
    """The newest record of each key."""
    newest: dict[bytes, Record] = {}
    for partition, (first, end) in bounds(log, topic).items():
        for record in read_range(log, topic, partition, first, end):
            newest[record.key or b""] = record
    return newest.values()
