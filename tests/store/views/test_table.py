"""A view in memory, compared with a simple model."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millstream.store.views.ring import ViewChange
from millstream.store.views.table import DELETED_MS, ViewTable


def value(n: int, **lineage: Any) -> bytes:
    return json.dumps({"n": n, **lineage}).encode()


def position(offset: int, row: int = 0, partition: int = 0) -> dict[str, Any]:
    place = {"source": "s", "partition": partition, "offset": offset, "row": row}
    return {"_position": place}


class Feed:
    """Applies records one after another, as one partition brings them."""

    def __init__(self, table: ViewTable) -> None:
        self.table = table
        self.offset = 0
        self.now = 1_000

    def put(self, key: str | None, data: bytes | None, partition: int = 0) -> ViewChange | None:
        name = None if key is None else json.dumps([key]).encode()
        change = self.table.apply(partition, self.offset, self.now, name, data)
        self.offset += 1
        return change


def keyed() -> Feed:
    return Feed(ViewTable(keyed=True))


writes = st.lists(
    st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.integers(1, 8))), max_size=60
)


@given(writes)
def test_a_table_holds_the_greatest_revision_since_the_key_was_deleted(
    history: list[tuple[str, int | None]],
) -> None:
    feed = keyed()
    held: dict[str, int] = {}
    greatest: dict[str, int] = {}
    for key, revision in history:
        change = feed.put(key, None if revision is None else value(revision, _revision=revision))
        if revision is None:
            assert (change is not None) == (key in held)
            held.pop(key, None)
        else:
            newer = revision > greatest.get(key, 0)
            assert (change is not None) == newer
            if newer:
                held[key] = greatest[key] = revision
    rows = {json.loads(key)[0]: row["n"] for key, row in feed.table.rows.items()}
    assert rows == held


@given(writes)
def test_the_changes_together_give_the_rows(
    history: list[tuple[str, int | None]],
) -> None:
    feed = keyed()
    state: dict[str | None, Any] = {}
    for key, revision in history:
        change = feed.put(key, None if revision is None else value(revision, _revision=revision))
        if change is None:
            continue
        assert change.before == state.get(change.key)
        if change.row is None:
            del state[change.key]
        else:
            state[change.key] = change.row
    assert state == feed.table.rows


@given(st.lists(st.integers(0, 20), max_size=60), st.integers(1, 10))
def test_a_replay_without_ignored_records_gives_the_same_rows(
    revisions: list[int], cut: int
) -> None:
    feed = keyed()
    accepted = [
        feed.put("a", value(revision, _revision=revision)) is not None for revision in revisions
    ]
    for offset, was_accepted in enumerate(accepted):
        assert feed.table.is_ignored(0, offset) != was_accepted
    shown = [r for r, was in zip(revisions, accepted, strict=True) if was][cut:]
    assert shown == sorted(set(shown)), "no number goes backwards"


def test_a_deleted_key_does_not_come_back_with_an_older_number() -> None:
    feed = keyed()
    feed.put("a", value(10, _revision=10))
    feed.put("a", None)
    assert feed.put("a", value(7, _revision=7)) is None
    assert feed.put("a", value(11, _revision=11)) is not None


def test_a_deleted_key_is_forgotten_after_some_time() -> None:
    feed = keyed()
    feed.put("a", value(10, _revision=10))
    feed.put("a", None)
    feed.now += DELETED_MS + 1
    feed.put("b", value(1, _revision=1))
    feed.put("b", None)
    assert feed.put("a", value(7, _revision=7)) is not None


def test_a_row_that_is_no_aggregate_is_replaced_by_a_later_event_only() -> None:
    feed = keyed()
    assert feed.put("a", value(1, **position(5)))
    assert feed.put("a", value(2, **position(4))) is None
    assert feed.put("a", value(2, **position(5))) is None
    assert feed.put("a", value(3, **position(6)))
    assert feed.put("a", value(4, **position(1, partition=1))), "not comparable: the newer record"


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 6), st.integers(0, 2)), max_size=60))
def test_a_view_without_key_drops_what_a_restart_repeats(
    records: list[tuple[int, int, int]],
) -> None:
    feed = Feed(ViewTable(keyed=False))
    seen: dict[int, tuple[int, int]] = {}
    expected = []
    for number, (partition, offset, row) in enumerate(records):
        feed.put(None, value(number, **position(offset, row, partition)))
        if (offset, row) > seen.get(partition, (-1, -1)):
            seen[partition] = (offset, row)
            expected.append(number)
    assert [row["n"] for row in feed.table.newest] == expected


def test_rows_without_version_are_all_applied() -> None:
    feed = keyed()
    assert feed.put("a", value(2))
    assert feed.put("a", value(1))


def test_unreadable_records_are_counted_and_skipped() -> None:
    feed = keyed()
    assert feed.put("a", b"{nonsense") is None
    assert feed.table.apply(0, 1, 0, b"not json", value(1, _revision=1)) is None
    assert feed.table.apply(0, 2, 0, b'["a"]', b"[1]") is None
    assert feed.table.unreadable == 3
    assert feed.table.offsets == (3,)


def test_a_view_without_key_keeps_the_newest_rows_only() -> None:
    feed = Feed(ViewTable(keyed=False, newest=3))
    for number in range(10):
        feed.put(None, value(number, **position(number)))
    assert [row["n"] for row in feed.table.newest] == [7, 8, 9]


def test_decimals_keep_their_digits() -> None:
    table = ViewTable(keyed=True, numbers="decimal")
    table.apply(0, 0, 0, b'["a"]', b'{"n":12345678901234567890.12}')
    assert str(table.rows['["a"]']["n"]) == "12345678901234567890.12"


def test_a_retracted_row_is_a_change_and_stays_until_the_next_one() -> None:
    feed = keyed()
    feed.put("a", value(1, _revision=1))
    taken = feed.put("a", value(1, _revision=1, _kind="retraction"))
    assert taken is not None
    assert taken.row == {"n": 1, "_revision": 1, "_kind": "retraction"}
    assert feed.table.rows == {'["a"]': {"n": 1, "_revision": 1}}
    feed.put("a", value(2, _revision=2))
    assert feed.table.rows == {'["a"]': {"n": 2, "_revision": 2}}
    assert feed.put("a", value(1, _revision=1, _kind="retraction")) is None, "a repeat"
    assert feed.put("b", value(1, _revision=1, _kind="retraction")) is None, "of nothing"
