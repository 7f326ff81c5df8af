"""Events that Kafka refuses stay in the failed store until an operator decides."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millstream.collect.intake.failed import FailedStore, Header
from millstream.errors import MillstreamError

HEADERS: list[Header] = [("ce_collector", "c1"), ("ce_sequence", "7"), ("ce_id", b"x\xff")]


def test_a_record_is_stored_unchanged_with_the_reason(tmp_path: Path) -> None:
    store = FailedStore(tmp_path / "failed")
    store.put("app.stream.orders", "key", b"\x00value", HEADERS, 1_700_000_000_123, "too large")
    (failed,) = FailedStore(tmp_path / "failed").list()
    assert failed.id == "c1-7.0"
    assert (failed.topic, failed.key, failed.value) == ("app.stream.orders", b"key", b"\x00value")
    assert failed.headers == (("ce_collector", b"c1"), ("ce_sequence", b"7"), ("ce_id", b"x\xff"))
    assert (failed.timestamp, failed.reason) == (1_700_000_000_123, "too large")
    assert failed.failed_at > failed.timestamp
    assert store.get("c1-7.0") == store.find("c1", 7, 0) == failed
    assert store.find("c1", 7, 1) is None


def test_only_the_owner_can_read_failed_events(tmp_path: Path) -> None:
    store = FailedStore(tmp_path / "failed")
    store.put("app.stream.orders", "key", b"value", HEADERS, 1, "too large")
    (file,) = (tmp_path / "failed").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "failed").stat().st_mode & 0o777 == 0o700


def test_events_are_listed_in_the_order_of_receipt(tmp_path: Path) -> None:
    store = FailedStore(tmp_path)
    for sequence, index in ((10, 0), (9, 11), (9, 2)):
        headers: list[Header] = [
            ("ce_collector", "c1"),
            ("ce_sequence", str(sequence)),
            ("ce_index", str(index)),
        ]
        store.put("t", None, b"", headers, 1, "r")
    assert [failed.id for failed in store.list()] == ["c1-9.2", "c1-9.11", "c1-10.0"]


def test_an_event_refused_twice_is_stored_once(tmp_path: Path) -> None:
    store = FailedStore(tmp_path)
    store.put("t", None, b"v", HEADERS, 1, "first")
    store.put("t", None, b"v", HEADERS, 1, "second")
    assert [failed.reason for failed in store.list()] == ["second"]


def test_events_without_an_identity_are_distinguished_by_content(tmp_path: Path) -> None:
    store = FailedStore(tmp_path)
    for value in (b"a", b"b", b"a"):
        store.put("t", None, value, [], 1, "r")
    assert sorted(failed.value for failed in store.list()) == [b"a", b"b"]


def test_many_events_are_stored_at_once(tmp_path: Path) -> None:
    store = FailedStore(tmp_path / "failed")

    def put(n: int) -> None:
        headers: list[Header] = [("ce_collector", "c"), ("ce_sequence", str(n))]
        store.put("t", None, b"%d" % n, headers, 1, "r")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(put, [n % 50 for n in range(100)]))
    assert [failed.value for failed in store.list()] == [b"%d" % n for n in range(50)]


def test_dropped_events_are_deleted_and_the_others_stay(tmp_path: Path) -> None:
    store = FailedStore(tmp_path)
    ids = [store.put("t", None, b"%d" % n, [], n, "r") for n in range(3)]
    assert store.drop([ids[1], "never-1.0"]) == 1
    assert sorted(failed.value for failed in store.list()) == [b"0", b"2"]


@pytest.mark.parametrize("wrong", ["c1-8.0", "../identity", "", "."])
def test_an_unknown_id_is_an_error_that_names_it(tmp_path: Path, wrong: str) -> None:
    (tmp_path / "identity.failed").write_bytes(b"")
    with pytest.raises(MillstreamError, match="failed event"):
        FailedStore(tmp_path / "failed").get(wrong)


def test_an_empty_store_lists_nothing(tmp_path: Path) -> None:
    assert list(FailedStore(tmp_path / "never").list()) == []


def test_a_damaged_file_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    store = FailedStore(tmp_path)
    each = store.put("t", None, b"v", HEADERS, 1, "r")
    path = tmp_path / f"{each}.failed"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(MillstreamError, match=r"c1-7\.0\.failed cannot be read"):
        store.get(each)
