"""Events that the log's retention took before a query came to them: which, exactly.

A query that comes to a place where they were ends; its start looks for them, as every start does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from millstream.analyze.recovery.progress import Read
from millstream.values.report import LostEvents

_OF_LOSS = re.compile(r"KAFKA_DATA_LOSS|data may have been lost|OffsetOutOfRangeException")

Bounds = Mapping[str, Mapping[int, tuple[int, int]]]  # topic → partition → oldest, end


def is_of_loss(text: str) -> bool:
    """Whether a query ended because the log has no more what it was about to read."""
    return bool(_OF_LOSS.search(text))


def find_lost(read: Read, held: Bounds, now: int) -> Iterator[LostEvents]:
    """What lies between where a query left off and what the topics still hold."""
    for topic, partitions in read.offsets.items():
        for partition, (oldest, _) in held.get(topic, {}).items():
            following = partitions.get(str(partition), 0)  # one that came later was empty first
            if following < oldest:
                yield LostEvents(topic, partition, following, oldest, now)


def add_lost(known: Iterable[LostEvents], found: Iterable[LostEvents]) -> tuple[LostEvents, ...]:
    """All losses: one that is seen again, because nothing was committed since, is the same one."""
    losses = {(each.topic, each.partition, each.start): each for each in known}
    for each in found:
        before = losses.get((each.topic, each.partition, each.start))
        if before is None or before.stop < each.stop:
            losses[each.topic, each.partition, each.start] = each
    return tuple(losses.values())


def skip_lost(checkpoint: Path, lost: Iterable[LostEvents]) -> None:
    """Let the query go on behind what is lost.

    Spark asks for it for ever. So the batches from the newest committed one on are said to have
    read as far as what is lost.
    """
    oldest: dict[str, dict[str, int]] = {}
    for each in lost:
        oldest.setdefault(each.topic, {})[str(each.partition)] = each.stop
    committed = max(_batches(checkpoint / "commits"), default=0)
    for batch in _batches(checkpoint / "offsets"):
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
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # Hadoop's, of the old content
    fresh.replace(file)


def _batches(folder: Path) -> list[int]:
    return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdigit())
