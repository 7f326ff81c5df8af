"""How far a view's query has read its inputs: what its checkpoint says, no more.

A batch's offsets count from when the batch is committed. In real-time mode a batch is a checkpoint
interval long, so the query itself is further, by up to that: what is said here is `at least`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pyspark.sql.streaming.query import StreamingQuery


class Read(NamedTuple):
    """Per topic and partition the next offset to read, as it was at a moment."""

    offsets: dict[str, dict[str, int]]
    at: int  # milliseconds since the epoch; 0: nothing is known


NOTHING = Read({}, 0)


def read_so_far(checkpoint: Path) -> Read:
    """What the newest committed batch has read; nothing if none is."""
    try:
        batches = [entry for entry in (checkpoint / "commits").iterdir() if entry.name.isdigit()]
        newest = max(batches, key=lambda entry: int(entry.name), default=None)
        if newest is None:
            return NOTHING
        committed_at = newest.stat().st_mtime_ns // 1_000_000
        text = (checkpoint / "offsets" / newest.name).read_text()
    except (FileNotFoundError, NotADirectoryError):  # not begun, or made anew at this moment
        return NOTHING
    return Read(_offsets(text), committed_at)


def first_offsets(checkpoint: Path) -> Read:
    """Where a query began that has committed nothing yet; nothing if it has not begun."""
    try:
        files = [source / "0" for source in (checkpoint / "sources").iterdir() if source.is_dir()]
        lines = ["", "", *(file.read_text().rpartition("\n")[2] for file in files if file.exists())]
        return Read(_offsets("\n".join(lines)), 0)
    except (FileNotFoundError, NotADirectoryError):
        return NOTHING


def set_out(checkpoint: Path) -> dict[str, dict[str, int]]:
    """Up to where the newest batch of micro-batches reads, be it committed, under way or ended."""
    try:
        batches = [entry for entry in (checkpoint / "offsets").iterdir() if entry.name.isdigit()]
        newest = max(batches, key=lambda entry: int(entry.name), default=None)
        return {} if newest is None else _offsets(newest.read_text(), further=max)
    except (FileNotFoundError, NotADirectoryError):
        return {}


def _offsets(text: str, further: Callable[[int, int], int] = min) -> dict[str, dict[str, int]]:
    # A version, a line of metadata, then a line of offsets for each source, `-` if it had none.
    offsets: dict[str, dict[str, int]] = {}
    for line in text.splitlines()[2:]:
        for topic, partitions in json.loads(line).items() if line.startswith("{") else ():
            held = offsets.setdefault(topic, {})
            for partition, offset in partitions.items():
                # A query that reads a topic twice has read what both of its sources have.
                held[partition] = further(offset, held.get(partition, offset))
    return offsets


def dropped_by_watermark(query: StreamingQuery) -> int:
    """How many rows Spark left out because it held their windows' state no more.

    It should be none: who is late has been sorted out before. Counted over the batches that Spark
    remembers, which are the last hundred since the query started; ask often enough.
    """
    return sum(
        int(operator["numRowsDroppedByWatermark"])
        for progress in query.recentProgress
        for operator in progress["stateOperators"]
    )
