"""Compares every row of a running example with what its simulator knows to be true."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millstream.log.consumer import bounds, read_range
from millstream.log.settings import LogSettings
from millstream.simulation import SentEvent, iso_time
from millstream.values.hidden_columns import RESERVED

if TYPE_CHECKING:
    from tests.end_to_end.conftest import System

Row = dict[str, Any]


def last_watermark(flowing: Sequence[SentEvent]) -> str:
    """Where the watermark is when these are in."""
    return iso_time(max(each.at for each in flowing if not each.future))


def differs(row: Row, true: Row, watermark: str) -> bool:
    # A row may be called final a moment early, and is then corrected by an event that was in time:
    # the log says who is late, and not when Spark will be through with those who are not.
    states = ["corrected"] if true["_state"] == "corrected" else ["final", "corrected"]
    if true["window"]["end"] > watermark:
        states = ["provisional"]
    plain = {name: value for name, value in true.items() if name != "_state"}
    return row["_state"] not in states or any(row[name] != plain[name] for name in plain)


def await_rows(
    system: System, view: str, true: Sequence[Row], key: Sequence[str], watermark: str = ""
) -> None:
    """Wait until a table holds exactly these rows; windows that end by the watermark are final."""
    expected = {_identity(row, key): row for row in true}

    def wrong() -> list[str]:
        held = {_identity(row, key): row for row in system.rows(view)}
        return [
            f"{view} has {held.get(each)}, should have {expected.get(each)}"
            for each in sorted(held.keys() | expected.keys())
            if not _is_true(held.get(each), expected.get(each), watermark)
        ]

    def is_true() -> bool:
        time.sleep(0.3)  # hundreds of rows are not asked for at every turn of the wait
        return not wrong()

    try:
        system.until(is_true, 120, f"the truth in {view}")
    except BaseException:
        print("\n".join(wrong()))
        raise


def _is_true(row: Row | None, true: Row | None, watermark: str) -> bool:
    if row is None or true is None:
        return False
    return not differs(row, true, watermark) if "_state" in true else row == true


def _identity(row: Mapping[str, Any], key: Sequence[str]) -> str:
    return json.dumps([row[name] for name in key], ensure_ascii=False)


def rows_in_log(system: System, topic: str) -> list[Row]:
    """The rows of a view in the order of the log, without hidden columns."""
    log = LogSettings(bootstrap=system.bootstrap)
    records = [
        record
        for partition, (first, end) in bounds(log, topic).items()
        for record in read_range(log, topic, partition, first, end)
    ]
    rows = [json.loads(record.value) for record in records if record.value]
    return [{name: row[name] for name in row if name not in RESERVED} for row in rows]


def as_set(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The rows in an order that does not depend on when they came."""
    return sorted(json.dumps(row, sort_keys=True, ensure_ascii=False) for row in rows)
