"""One file of the journal, and what is known in memory about the entries in it."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field
from pathlib import Path

_NAME = re.compile(r"(\d{8,})-(\d{20})-([0-9a-f]{8})\.segment")
_DAMAGED = 0  # no entry begins there: it is where the segment's first record is


@dataclass(slots=True, eq=False)
class Segment:
    """Nine bytes for each entry, by its place; the payloads are in the file only.

    The name holds number, first sequence and mark: they are needed to read a file whose beginning
    is damaged. A sequence from the next segment's first one on is not valid in this one.
    """

    path: Path
    number: int
    first: int
    mark: bytes
    size: int = 0  # valid bytes
    void: bool = False  # behind `size`, the file may hold a group whose senders got an error
    unsettled: int = 0
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    lengths: array[int] = field(default_factory=lambda: array("I"))  # of the payload
    settled: bytearray = field(default_factory=bytearray)

    @classmethod
    def at(cls, folder: Path, number: int, first: int, mark: bytes) -> Segment:
        return cls(folder / f"{number:08}-{first:020}-{mark.hex()}.segment", number, first, mark)

    @classmethod
    def named(cls, path: Path) -> Segment | None:
        """The segment that a file's name tells of; None if it is some other file."""
        if not (found := _NAME.fullmatch(path.name)):
            return None
        return cls(path, int(found[1]), int(found[2]), bytes.fromhex(found[3]))

    @property
    def after(self) -> int:
        """The sequence that follows the last entry."""
        return self.first + len(self.settled)

    def add(self, offset: int, length: int) -> None:
        """The next entry."""
        self.offsets.append(offset)
        self.lengths.append(length)
        self.settled.append(0)
        self.unsettled += 1

    def skip_to(self, sequence: int) -> None:
        """Entries up to there are damaged: nothing can be done for them."""
        missing = sequence - self.after
        self.offsets.extend([_DAMAGED] * missing)
        self.lengths.extend([0] * missing)
        self.settled.extend(b"\1" * missing)

    def settle(self, sequence: int) -> int:
        """The length of the entry that is settled by this; -1 if it was before."""
        place = sequence - self.first
        if self.settled[place]:
            return -1
        self.settled[place] = 1
        self.unsettled -= 1
        return self.lengths[place]

    def next_unsettled(self, sequence: int) -> int:
        """The first unsettled sequence from this one on; -1 if there is none."""
        place = self.settled.find(0, max(0, sequence - self.first))
        return place + self.first if place >= 0 else -1
