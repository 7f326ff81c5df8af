"""How far a view has read, by its checkpoint; test_queries does the same with Spark."""

from __future__ import annotations

import json
from pathlib import Path

from millstream.analyze.recovery.progress import NOTHING_READ, committed_offsets


def test_only_committed_batches_count(tmp_path: Path) -> None:
    assert committed_offsets(tmp_path) == NOTHING_READ
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    assert committed_offsets(tmp_path) == NOTHING_READ
    one, two = {"a": {"0": 5, "1": 7}}, {"a": {"0": 6, "1": 3}, "b": {"0": 1}}
    for batch in ("9", "10", "11"):
        lines = ["v1", "{}", json.dumps(one), "-", json.dumps(two)]
        (tmp_path / "offsets" / batch).write_text("\n".join(lines))
        one["a"]["0"] += 100
        two["a"]["0"] += 100
    (tmp_path / "commits" / ".11.tmp").touch()
    for batch in ("9", "10"):
        (tmp_path / "commits" / batch).touch()
    read = committed_offsets(tmp_path)
    assert read.offsets == {"a": {"0": 105, "1": 3}, "b": {"0": 1}}
    assert read.at == (tmp_path / "commits" / "10").stat().st_mtime_ns // 1_000_000
