"""How far a view's query has read its inputs, according to its checkpoint.

Only committed batches count. In real-time mode a batch lasts for one checkpoint interval, so the
query itself may be ahead by that much.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pyspark.sql.streaming.query import StreamingQuery


class ReadOffsets(NamedTuple):
    """The next offset to read, per topic and partition, at some time."""

    offsets: dict[str, dict[str, int]]
    at: int  # milliseconds since the epoch; 0: not known


NOTHING_READ = ReadOffsets({}, 0)


def committed_offsets(checkpoint: Path) -> ReadOffsets:
    """The end offsets of the newest committed batch."""
    try:
        if not (batches := batch_numbers(checkpoint / "commits")):
            return NOTHING_READ
        newest = str(max(batches))
        committed_at = (checkpoint / "commits" / newest).stat().st_mtime_ns // 1_000_000
        text = (checkpoint / "offsets" / newest).read_text()
    except (FileNotFoundError, NotADirectoryError):  # not started, or just being cleared
        return NOTHING_READ
    return ReadOffsets(_offsets(text), committed_at)


def initial_offsets(checkpoint: Path) -> ReadOffsets:
    """The start offsets of a query's first batch."""
    try:
        files = [source / "0" for source in (checkpoint / "sources").iterdir() if source.is_dir()]
        lines = ["", "", *(file.read_text().rpartition("\n")[2] for file in files if file.exists())]
        return ReadOffsets(_offsets("\n".join(lines)), 0)
    except (FileNotFoundError, NotADirectoryError):
        return NOTHING_READ


def planned_offsets(checkpoint: Path) -> dict[str, dict[str, int]]:
    """The end offsets of the newest micro-batch, committed or not."""
    folder = checkpoint / "offsets"
    batches = batch_numbers(folder)
    try:
        return _offsets((folder / str(max(batches))).read_text(), further=max) if batches else {}
    except FileNotFoundError:
        return {}


def batch_numbers(folder: Path) -> set[int]:
    """The batches that have a file in the folder; none if there is no such folder."""
    if not folder.is_dir():
        return set()
    return {int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()}


def _offsets(text: str, further: Callable[[int, int], int] = min) -> dict[str, dict[str, int]]:
    # A version, a line of metadata, then a line of offsets for each source, or `-` for none.
    offsets: dict[str, dict[str, int]] = {}
    for line in text.splitlines()[2:]:
        for topic, partitions in json.loads(line).items() if line.startswith("{") else ():
            held = offsets.setdefault(topic, {})
            for partition, offset in partitions.items():
                # If a query reads a topic twice, it has read what both sources have.
                held[partition] = further(offset, held.get(partition, offset))
    return offsets


def dropped_by_watermark(query: StreamingQuery) -> int:
    """The number of rows that Spark dropped because it had deleted their window's state.

    It should be 0, because late events are filtered before. Spark remembers the last hundred
    batches since the query started: call this often enough.
    """
    return sum(
        int(operator["numRowsDroppedByWatermark"])
        for progress in query.recentProgress
        for operator in progress["stateOperators"]
    )
