"""What a view must hold once everything up to a fixed place in the log is in: by batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec

from millstream.analyze.history.history import LogRange, as_batch
from millstream.analyze.planning.planned_query import PlannedQuery
from millstream.analyze.records.reader import kafka_options
from millstream.analyze.records.writer import encode
from millstream.analyze.verify.comparison import text_of
from millstream.log.settings import LogSettings
from millstream.values.hidden_columns import POSITION, REVISION

Row = Mapping[str, Any]
Mark = int | tuple[str, int, int, int] | str  # a revision, a position, or all that the row says

decode = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal).decode


@dataclass(frozen=True, slots=True)
class Marks:
    """How a view's rows are told apart, and in which state of the log each was made."""

    query: PlannedQuery

    def identity(self, key: str | None, row: Row) -> str:
        """What the newest row of takes an older one's place: the key, or the row's own place."""
        if key is not None:
            return key
        if self.query.plan.lineage == "position":
            return text_of(row.get(POSITION))
        return self._content(row)

    def mark(self, row: Row) -> Mark | None:
        """Which events are in the row; None if it does not say."""
        if self.query.plan.lineage == "revision":
            revision = row.get(REVISION)
            return revision if type(revision) is int else None
        if self.query.plan.lineage == "position":
            return _position(row.get(POSITION))
        return self._content(row)

    def is_beyond(self, mark: Mark | None, wanted: Mapping[Mark, Row]) -> bool:
        """Whether a row with that mark holds an event that none of the wanted rows holds."""
        if isinstance(mark, int):
            return all(isinstance(each, int) and mark > each for each in wanted)
        if isinstance(mark, tuple):
            same = [w for w in wanted if isinstance(w, tuple) and w[:2] == mark[:2]]
            return all(mark > each for each in same)
        return mark not in wanted

    def _content(self, row: Row) -> str:
        return text_of({column.name: row.get(column.name) for column in self.query.plan.columns})


Wanted = dict[str, dict[Mark, Row]]


def recompute(query: PlannedQuery, log: LogSettings, past: LogRange) -> Wanted:
    """Per key, or per row of a view without one, the rows that the view may hold at that place.

    It is one for a grouped view. Of a key whose rows come from events of several partitions, which
    have no order among them, each partition's newest may be the one.
    """
    marks, wanted = Marks(query), Wanted()
    frame = encode(as_batch(query.batch_rows, past, kafka_options(log)), query.plan.key)
    for record in frame.toLocalIterator():
        row = decode(record["value"])
        key = record["key"] if query.plan.key is not None else None
        mark = marks.mark(row)
        if mark is not None:
            _add(wanted.setdefault(marks.identity(key, row), {}), mark, row)
    return wanted


def _add(rows: dict[Mark, Row], mark: Mark, row: Row) -> None:
    if isinstance(mark, tuple):
        for held in list(rows):
            if isinstance(held, tuple) and held[:2] == mark[:2]:
                if held > mark:
                    return
                del rows[held]
    rows[mark] = row


def _position(value: object) -> Mark | None:
    match value:
        case {"source": str(source), "partition": int(partition), "offset": int(offset), **rest}:
            row = rest.get("row", 0)
            return (source, partition, offset, row if isinstance(row, int) else 0)
        case _:
            return None
