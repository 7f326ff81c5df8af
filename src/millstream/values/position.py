"""A position in a topic that is valid on every server and after any restart.

Written `<epoch>:<partition>=<offset>,…`. The epoch is the topic's id, so a position never applies
to another topic of the same name (a rebuilt view). An offset is Kafka's, and names the next record
to read: all records below it have been read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from millstream.errors import InvalidPosition

_WRITTEN = re.compile(
    r"(?P<epoch>[A-Za-z0-9_-]{1,64}):(?P<offsets>(?:[0-9]+=[0-9]+(?:,[0-9]+=[0-9]+)*)?)"
)
_PARTITIONS, _OFFSETS = 2**31, 2**63  # Kafka's own bounds


@dataclass(frozen=True, slots=True)
class Position:
    """The next offset to read in each partition of one epoch of a topic."""

    epoch: str
    offsets: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Position:
        """The position in a text; InvalidPosition if it is none."""
        match = _WRITTEN.fullmatch(text)
        position = cls._of(match["epoch"], match["offsets"]) if match else None
        if position is None:
            raise InvalidPosition(
                f"position {text[:100]!r} is not of the form <epoch>:<partition>=<offset>,…",
                remedy="send back a position exactly as a server gave it, a time such as "
                "2026-11-01T00:00:00Z, or none for a snapshot",
            )
        return position

    @classmethod
    def _of(cls, epoch: str, written: str) -> Position | None:
        pairs = [pair.split("=") for pair in written.split(",")] if written else []
        if any(len(number) > 19 for pair in pairs for number in pair):
            return None  # too big in any case; do not parse them
        offsets = {int(partition): int(offset) for partition, offset in pairs}
        sound = len(offsets) == len(pairs) and all(
            partition < _PARTITIONS and offset < _OFFSETS for partition, offset in offsets.items()
        )
        return cls(epoch, offsets) if sound else None

    def __str__(self) -> str:
        return f"{self.epoch}:{','.join(f'{p}={o}' for p, o in sorted(self.offsets.items()))}"

    def covers(self, partition: int, offset: int) -> bool:
        """Whether the record at `offset` has been read."""
        return offset < self.offsets.get(partition, 0)

    def after(self, partition: int, offset: int) -> Position:
        """The position after the record at `offset`."""
        return Position(self.epoch, {**self.offsets, partition: offset + 1})
