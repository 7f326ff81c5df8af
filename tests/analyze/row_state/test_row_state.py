"""States of rows: how they become final, are corrected and are deleted."""

from __future__ import annotations

import json
from typing import Any, Literal

from millstream.analyze.plan import ViewPlan
from millstream.analyze.row_state.row_state import RowStates
from millstream.analyze.row_state.row_updates import DELETES, RestoredRow, RowKey, Tombstone
from millstream.log.record import Record
from millstream.store.views.table import ViewTable

KEY = b'["x"]'


def view(
    topic: str = "t",
    window: str | None = None,
    keep_ms: int | None = 1000,
    output_mode: Literal["update", "append"] = "update",
) -> ViewPlan:
    return ViewPlan(
        name="v",
        inputs=("s",),
        reads=("s",),
        topic=topic,
        key=("k",),
        columns=(),
        window=window,
        mode="real_time",
        output_mode=output_mode,
        reason="",
        lineage="revision",
        lineage_reason="",
        slots=1,
        keep_ms=keep_ms,
        generation="g",
        description="",
    )


def row(offset: int, timestamp: int, **value: Any) -> Record:
    return Record("t", 0, offset, timestamp, KEY, json.dumps(value).encode(), ())


def tombstone(offset: int, ends: int) -> Record:
    return Record("t", 0, offset, 0, KEY, None, ((DELETES, str(ends).encode()),))


def test_a_row_expires_a_fixed_time_after_its_last_change() -> None:
    states = RowStates([view()])
    states.apply(row(0, timestamp=0))
    states.apply(row(1, timestamp=500))
    assert states.tombstones(now=1499) == []
    assert states.tombstones(now=1500) == [Tombstone(RowKey("t", 0, KEY), offset=1)]
    assert states.tombstones(now=9999) == [], "it was returned once"


def test_a_windowed_row_expires_a_fixed_time_after_its_window_ended() -> None:
    states = RowStates([view(window="w")])
    window = {"start": "1970-01-01T00:00:00.000000Z", "end": "1970-01-01T00:01:00.000000Z"}
    states.apply(row(0, timestamp=99_999, w=window))
    assert states.tombstones(now=60_999) == []
    assert len(states.tombstones(now=61_000)) == 1


def test_a_row_that_expires_before_it_was_final_is_written_as_final_first() -> None:
    states, table = RowStates([view(window="w")]), ViewTable(keyed=True, stateful=True)
    window = {"start": "1970-01-01T00:00:00.000000Z", "end": "1970-01-01T00:01:00.000000Z"}
    states.apply(row(0, timestamp=99_999, w=window, _revision=1))
    (end,) = states.tombstones(now=100_000)
    assert end.final_value is not None
    final = Record("t", 0, 1, 100_000, KEY, end.final_value, ())
    states.apply(final)
    change = table.apply(*final[1:6])
    assert change is not None
    assert change.row is not None
    assert change.row["_state"] == "final"
    states.apply(tombstone(2, ends=end.offset))
    assert (states.tombstones(now=200_000), states.restored()) == ([], [])


def test_a_correction_of_an_expired_row_is_written_before_it_expires_again() -> None:
    states = RowStates([view(window="w")])
    states.apply(row(0, timestamp=0, w=window(10), _revision=1))
    (end,) = states.tombstones(now=11_000)
    states.apply(Record("t", 0, 1, 11_000, KEY, end.final_value, ()))
    states.apply(tombstone(2, ends=end.offset))
    states.apply(row(3, timestamp=12_000, w=window(10), _revision=2))
    (end,) = states.tombstones(now=12_000)
    assert updates_at(states, 12_000) == []
    assert end.final_value is not None, "or the ledger would miss it"
    assert json.loads(end.final_value) == {"w": window(10), "_revision": 2, "_state": "corrected"}
    states.apply(Record("t", 0, 4, 12_000, KEY, end.final_value, ()))
    states.apply(tombstone(5, ends=end.offset))
    assert (states.tombstones(now=20_000), states.restored()) == ([], [])


def test_a_tombstone_that_could_not_be_written_is_due_again() -> None:
    states = RowStates([view()])
    states.apply(row(0, timestamp=0))
    (end,) = states.tombstones(now=1000)
    states.retry(end)
    assert states.tombstones(now=1001) == [end]


def test_a_newer_row_is_written_again_after_the_tombstone_of_an_older_one() -> None:
    states = RowStates([view()])
    states.apply(row(0, timestamp=0))
    states.tombstones(now=1000)
    states.apply(row(1, timestamp=1001, n=2))
    states.apply(tombstone(2, ends=0))
    (back,) = states.restored()
    assert back == RestoredRow(RowKey("t", 0, KEY), b'{"n": 2,"_returned":2}', 1001)
    assert states.restored() == []
    states.apply(Record("t", 0, 3, 1001, KEY, back.value, ()))
    states.apply(tombstone(4, ends=1))
    assert [each.value for each in states.restored()] == [b'{"n": 2,"_returned":4}']


def test_a_server_shows_a_row_that_was_written_again() -> None:
    states, table = RowStates([view()]), ViewTable(keyed=True)

    def log(record: Record) -> None:
        states.apply(record)
        table.apply(*record[1:6])

    log(row(0, timestamp=0, _revision=1))
    log(row(1, timestamp=900, _revision=2))
    log(tombstone(2, ends=0))
    assert list(table.rows) == []
    (back,) = states.restored()
    log(Record("t", 0, 3, back.timestamp, KEY, back.value, ()))
    assert [each["_revision"] for each in table.rows.values()] == [2]
    log(row(4, timestamp=950, _revision=3))
    assert [each["_revision"] for each in table.rows.values()] == [3]


def test_a_row_that_spark_wrote_after_the_tombstone_is_not_written_again() -> None:
    states = RowStates([view()])
    for record in (row(0, 0), row(1, 10), tombstone(2, ends=0), row(3, 10)):
        states.apply(record)
    assert states.restored() == []
    assert states.tombstones(now=2000) == [Tombstone(RowKey("t", 0, KEY), offset=3)]


def test_a_row_that_comes_after_its_tombstone_expires_again() -> None:
    states = RowStates([view()])
    states.apply(row(0, timestamp=0))
    states.tombstones(now=1000)
    states.apply(tombstone(1, ends=0))
    assert states.restored() == []
    states.apply(row(2, timestamp=5000))
    assert states.tombstones(now=5999) == []
    assert states.tombstones(now=6000) == [Tombstone(RowKey("t", 0, KEY), offset=2)]


def window(end: int) -> dict[str, str]:
    return {"start": "1970-01-01T00:00:00.000000Z", "end": f"1970-01-01T00:00:{end:02}.000000Z"}


def updates_at(states: RowStates, watermark: int) -> list[bytes]:
    """The states that are written at that watermark, once it is committed."""
    states.committed |= states.to_commit({"t": watermark})
    return [each.value for each in states.state_updates({"t": watermark})]


def test_a_row_is_final_when_the_watermark_has_passed_its_window() -> None:
    states = RowStates([view(window="w", keep_ms=None)])
    states.apply(row(0, 0, w=window(10), _revision=1))
    assert updates_at(states, 9_999) == []
    (value,) = updates_at(states, 10_000)
    assert json.loads(value) == {"w": window(10), "_revision": 1, "_state": "final"}
    assert updates_at(states, 11_000) == [], "it was returned once"


def test_a_newer_row_of_a_window_that_was_final_is_corrected() -> None:
    states = RowStates([view(window="w", keep_ms=None)])
    states.apply(row(0, 0, w=window(10), _revision=1))
    (value,) = updates_at(states, 10_000)
    states.apply(Record("t", 0, 1, 0, KEY, value, ()))
    states.apply(row(2, 0, w=window(10), _revision=2))
    (value,) = updates_at(states, 10_000)
    assert json.loads(value) == {"w": window(10), "_revision": 2, "_state": "corrected"}


def test_a_new_row_of_a_window_that_was_final_is_a_correction() -> None:
    states = RowStates([view(window="w", keep_ms=None)])
    states.apply(row(0, 0, w=window(10), _revision=1))
    updates_at(states, 10_000)
    other = Record("t", 0, 1, 0, b'["y"]', row(1, 0, w=window(9), _revision=1).value, ())
    states.apply(other)
    assert [json.loads(each)["_state"] for each in updates_at(states, 10_000)] == ["corrected"]


def test_in_append_mode_a_late_row_is_final_and_not_a_correction() -> None:
    states = RowStates([view(window="w", keep_ms=None, output_mode="append")])
    for place, end in enumerate((10, 20)):  # each session's row comes long after its end
        key, session = b"%d" % end, row(2 * place, 0, w=window(end), _revision=1)
        states.apply(session._replace(key=key))
        (value,) = updates_at(states, 100_000 + place)
        assert json.loads(value)["_state"] == "final"
        states.apply(Record("t", 0, 2 * place + 1, 0, key, value, ()))


def test_rows_that_cannot_change_are_forgotten() -> None:
    states = RowStates([view(window="w", keep_ms=None)])
    for number in range(100):
        value = row(number, number, w=window(10), _revision=1, text="x" * 1000).value
        states.apply(Record("t", 0, number, number, f'["{number}"]'.encode(), value, ()))
    for number, value in enumerate(updates_at(states, 10_000)):
        states.apply(Record("t", 0, 100 + number, 200, f'["{number}"]'.encode(), value, ()))
    assert (len(states), states.held_bytes) == (100, 0), "of final rows only the version is held"
    states.forget({"t": 69_999}, {"t": 10**9})
    states.forget({"t": 10**9}, {"t": 59_999})
    assert len(states) == 100, "an event may arrive, or Spark may repeat what it has not committed"
    states.forget({"t": 70_000}, {"t": 60_100})
    assert len(states) == 0
    states.apply(row(200, 0, w=window(10), _revision=2))
    assert [json.loads(each)["_state"] for each in updates_at(states, 10**9)] == ["corrected"]


def test_deleted_rows_are_forgotten_when_spark_cannot_repeat_them() -> None:
    states = RowStates([view()])
    states.apply(row(0, timestamp=0, n="x" * 1000))
    states.tombstones(now=1000)
    states.apply(tombstone(1, ends=0))
    assert (len(states), states.held_bytes) == (1, 0)
    states.forget({}, {"t": 60_000})
    assert len(states) == 1
    states.forget({}, {"t": 60_001})
    assert len(states) == 0
