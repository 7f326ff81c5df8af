"""The difference between two editions of a view: the one that is served, and its shadow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from millstream.analyze.verify.comparison import comparison_by_type, text_of
from millstream.log.consumer import bounds, read_range
from millstream.log.settings import LogSettings
from millstream.store.views.table import ViewTable
from millstream.values.hidden_columns import POSITION
from millstream.values.view_description import ViewDescription

Row = dict[str, Any]


@dataclass(slots=True)
class Diff:
    """Rows of the old edition compared with those of the new one, by key."""

    same: int = 0
    changed: dict[str, tuple[Row, Row]] = field(default_factory=dict)  # old, new
    removed: dict[str, Row] = field(default_factory=dict)  # only in the old
    added: dict[str, Row] = field(default_factory=dict)  # only in the new

    def __len__(self) -> int:
        return len(self.changed) + len(self.removed) + len(self.added)


def diff(log: LogSettings, view: ViewDescription, old_topic: str, new_topic: str) -> Diff:
    """Compare all rows that both topics have now. Blocks."""
    # The new edition is read last, so that it lacks nothing that the old one has.
    old, new = _rows(log, view, old_topic), _rows(log, view, new_topic)
    compared, found = comparison_by_type(view.columns), Diff()
    for key, row in old.items():
        if key not in new:
            found.removed[key] = row
        elif compared.differing(row, new[key]):
            found.changed[key] = (row, new[key])
        else:
            found.same += 1
    found.added = {key: row for key, row in new.items() if key not in old}
    return found


def _rows(log: LogSettings, view: ViewDescription, topic: str) -> dict[str, Row]:
    table = ViewTable(keyed=view.key is not None, numbers="decimal", recent=1, newest=1)
    rows: dict[str, Row] = {}
    for partition, (low, high) in bounds(log, topic).items():
        for record in read_range(log, topic, partition, low, high):
            change = table.apply(*record[1:6])
            if change is not None and change.key is None and change.row is not None:
                rows[text_of(change.row.get(POSITION, change.row))] = change.row
    return dict(table.rows) if table.keyed else rows
