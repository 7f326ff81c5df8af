"""Recomputes in batch the rows that a view must hold at a fixed point of the log."""

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
Version = int | tuple[str, int, int, int] | str  # a revision, a position, or all columns as text
ExpectedRows = dict[str, dict[Version, Row]]  # by identity and version

decode = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal).decode


@dataclass(frozen=True, slots=True)
class RowVersions:
    """Identity and version of a view's rows, by its lineage."""

    query: PlannedQuery

    def identity(self, key: str | None, row: Row) -> str:
        """Identity under which a newer row replaces an older one."""
        if key is not None:
            return key
        if self.query.plan.lineage == "position":
            return text_of(row.get(POSITION))
        return self._content(row)

    def version(self, row: Row) -> Version | None:
        """Which events are in the row; None if it does not say."""
        if self.query.plan.lineage == "revision":
            revision = row.get(REVISION)
            return revision if type(revision) is int else None
        if self.query.plan.lineage == "position":
            return _position(row.get(POSITION))
        return self._content(row)

    def is_ahead(self, row: Row, expected: Mapping[Version, Row]) -> bool:
        """Whether the row has an event that none of the expected rows has."""
        version = self.version(row)
        if isinstance(version, int):
            return all(isinstance(each, int) and version > each for each in expected)
        if isinstance(version, tuple):
            same = [e for e in expected if isinstance(e, tuple) and e[:2] == version[:2]]
            return all(version > each for each in same)
        return version not in expected

    def _content(self, row: Row) -> str:
        return text_of({column.name: row.get(column.name) for column in self.query.plan.columns})


def recompute(query: PlannedQuery, log: LogSettings, log_range: LogRange) -> ExpectedRows:
    """The rows that the view may hold at the end of the log range.

    A grouped view has one for each key. Otherwise a key's rows may come from several partitions,
    which have no common order: then the newest row of each partition may be the one.
    """
    versions, expected = RowVersions(query), ExpectedRows()
    rows = as_batch(query.batch_rows, log_range, kafka_options(log))
    for record in encode(rows, query.plan.key).toLocalIterator():
        row = decode(record["value"])
        key = record["key"] if query.plan.key is not None else None
        version = versions.version(row)
        if version is not None:
            _add(expected.setdefault(versions.identity(key, row), {}), version, row)
    return expected


def _add(rows: dict[Version, Row], version: Version, row: Row) -> None:
    if isinstance(version, tuple):
        for held in list(rows):
            if isinstance(held, tuple) and held[:2] == version[:2]:
                if held > version:
                    return
                del rows[held]
    rows[version] = row


def _position(value: object) -> Version | None:
    match value:
        case {"source": str(source), "partition": int(partition), "offset": int(offset), **rest}:
            row = rest.get("row", 0)
            return (source, partition, offset, row if isinstance(row, int) else 0)
        case _:
            return None
