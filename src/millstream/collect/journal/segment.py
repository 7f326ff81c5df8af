"""One file of the journal, and the state of its entries."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field
from pathlib import Path

_NAME = re.compile(r"(\d{8,})-(\d{20})-([0-9a-f]{8})\.segment")
_DAMAGED = 0  # an offset that no entry has: the header is there


@dataclass(slots=True, eq=False)
class Segment:
    """Holds 13 bytes for each entry; the payloads are only in the file.

    The file name holds number, first sequence number and mark: a file with a damaged start can be
    read with them. Sequence numbers end before the first one of the next segment.
    """

    path: Path
    number: int
    first: int
    mark: bytes
    size: int = 0  # valid bytes
    void: bool = False  # after `size`, the file may hold entries whose senders got an error
    unsettled: int = 0
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    lengths: array[int] = field(default_factory=lambda: array("I"))  # of the payload
    settled: bytearray = field(default_factory=bytearray)

    @classmethod
    def create(cls, folder: Path, number: int, first: int, mark: bytes) -> Segment:
        return cls(folder / f"{number:08}-{first:020}-{mark.hex()}.segment", number, first, mark)

    @classmethod
    def from_path(cls, path: Path) -> Segment | None:
        """The segment of a file, by its name; None if it is another file."""
        if not (found := _NAME.fullmatch(path.name)):
            return None
        return cls(path, int(found[1]), int(found[2]), bytes.fromhex(found[3]))

    @property
    def after(self) -> int:
        """The sequence number after the last entry."""
        return self.first + len(self.settled)

    def add(self, offset: int, length: int) -> None:
        """Add the next entry."""
        self.offsets.append(offset)
        self.lengths.append(length)
        self.settled.append(0)
        self.unsettled += 1

    def skip_to(self, sequence: int) -> None:
        """Mark the entries before `sequence` as damaged."""
        missing = sequence - self.after
        self.offsets.extend([_DAMAGED] * missing)
        self.lengths.extend([0] * missing)
        self.settled.extend(b"\1" * missing)

    def settle(self, sequence: int) -> int:
        """Settle an entry; its length, or -1 if it was settled before."""
        place = sequence - self.first
        if self.settled[place]:
            return -1
        self.settled[place] = 1
        self.unsettled -= 1
        return self.lengths[place]

    def next_unsettled(self, sequence: int) -> int:
        """The first unsettled sequence number from this one on; -1 if there is none."""
        place = self.settled.find(0, max(0, sequence - self.first))
        return place + self.first if place >= 0 else -1
