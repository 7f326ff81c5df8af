"""A place in a topic that means the same on every server and after any restart.

Written `<epoch>:<partition>=<offset>,…`. The epoch is the topic's id, so a topic that was made anew
(a view's new generation) never answers for the old one. An offset is Kafka's, and names the next
record to read: everything below it is already in.
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
        """The position that `text` writes; InvalidPosition if it writes none."""
        match = _WRITTEN.fullmatch(text)
        position = cls._of(match["epoch"], match["offsets"]) if match else None
        if position is None:
            raise InvalidPosition(
                f"position {text[:100]!r} is not of the form <epoch>:<partition>=<offset>,…",
                remedy="send back a position exactly as a server gave it, or none for a snapshot",
            )
        return position

    @classmethod
    def _of(cls, epoch: str, written: str) -> Position | None:
        pairs = [pair.split("=") for pair in written.split(",")] if written else []
        if any(len(number) > 19 for pair in pairs for number in pair):
            return None  # spares the work of reading numbers that are too big anyway
        offsets = {int(partition): int(offset) for partition, offset in pairs}
        sound = len(offsets) == len(pairs) and all(
            partition < _PARTITIONS and offset < _OFFSETS for partition, offset in offsets.items()
        )
        return cls(epoch, offsets) if sound else None

    def __str__(self) -> str:
        return f"{self.epoch}:{','.join(f'{p}={o}' for p, o in sorted(self.offsets.items()))}"

    def covers(self, partition: int, offset: int) -> bool:
        """Whether the record at `offset` is already in."""
        return offset < self.offsets.get(partition, 0)

    def after(self, partition: int, offset: int) -> Position:
        """The position once the record at `offset` is in too."""
        return Position(self.epoch, {**self.offsets, partition: offset + 1})
