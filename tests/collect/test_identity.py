"""No two starts of a collector have the same id."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from millstream.collect.identity import next_identity
from millstream.home import Home


def test_a_collector_keeps_its_name_and_counts_its_starts(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    first, second = next_identity(home), next_identity(home)
    assert first.rpartition("-")[0] == second.rpartition("-")[0]
    assert (first.rpartition("-")[2], second.rpartition("-")[2]) == ("1", "2")


def test_collectors_of_different_homes_have_different_names(tmp_path: Path) -> None:
    assert next_identity(Home(tmp_path / "a")) != next_identity(Home(tmp_path / "b"))


def test_collectors_that_start_at_once_get_different_ids(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        identities = list(threads.map(lambda _: next_identity(home), range(40)))
    assert len(set(identities)) == 40
