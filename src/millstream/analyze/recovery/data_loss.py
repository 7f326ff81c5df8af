"""Finds events that retention deleted before a query read them.

A query that reaches deleted offsets fails. Its next start, like every start, looks for lost events.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from millstream.analyze.recovery.progress import ReadOffsets, batch_numbers
from millstream.values.report import LostEvents

_DATA_LOSS = re.compile(r"KAFKA_DATA_LOSS|data may have been lost|OffsetOutOfRangeException")

Bounds = Mapping[str, Mapping[int, tuple[int, int]]]  # topic → partition → oldest, end


def is_data_loss(text: str) -> bool:
    """Whether a query failed because the log no longer has the next records."""
    return bool(_DATA_LOSS.search(text))


def find_lost(read: ReadOffsets, held: Bounds, now: int) -> Iterator[LostEvents]:
    """The events between a query's offsets and the oldest ones in the topics."""
    for topic, partitions in read.offsets.items():
        for partition, (oldest, _) in held.get(topic, {}).items():
            following = partitions.get(
                str(partition), 0
            )  # a partition that was added later starts at 0
            if following < oldest:
                yield LostEvents(topic, partition, following, oldest, now)


def add_lost(known: Iterable[LostEvents], found: Iterable[LostEvents]) -> tuple[LostEvents, ...]:
    """All losses. One that starts at the offset of a known one is the same, and may be longer."""
    losses = {(each.topic, each.partition, each.start): each for each in known}
    for each in found:
        before = losses.get((each.topic, each.partition, each.start))
        if before is None or before.stop < each.stop:
            losses[each.topic, each.partition, each.start] = each
    return tuple(losses.values())


def skip_lost(checkpoint: Path, lost: Iterable[LostEvents]) -> None:
    """Let the query continue after the lost events.

    Spark would ask for them forever. So the offset files from the newest committed batch on are
    rewritten to end after the lost events.
    """
    oldest: dict[str, dict[str, int]] = {}
    for each in lost:
        oldest.setdefault(each.topic, {})[str(each.partition)] = each.stop
    committed = max(batch_numbers(checkpoint / "commits"), default=0)
    for batch in batch_numbers(checkpoint / "offsets"):
        if batch >= committed:
            _raise_offsets(checkpoint / "offsets" / str(batch), oldest)


def _raise_offsets(file: Path, oldest: Mapping[str, Mapping[str, int]]) -> None:
    lines = file.read_text().splitlines()
    for number, line in enumerate(lines[2:], start=2):
        if line.startswith("{"):
            offsets = json.loads(line)
            for topic, partitions in offsets.items():
                for partition, at in oldest.get(topic, {}).items():
                    partitions[partition] = max(at, partitions.get(partition, at))
            lines[number] = json.dumps(offsets, separators=(",", ":"))
    fresh = file.with_name(f".{file.name}.skip.tmp")
    fresh.write_text("\n".join(lines))
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum
    fresh.replace(file)
