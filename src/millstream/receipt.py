"""A receipt: what a sender keeps of an event, to ask later where it is."""

from __future__ import annotations

import re
from dataclasses import dataclass

_WRITTEN = re.compile(r"([lr])\.([A-Za-z0-9_-]+)\.(\d{1,10})\.(\d{1,19})\.(\d{1,19})")


@dataclass(frozen=True, slots=True)
class Receipt:
    """A record's place in the log. Senders treat its text as opaque: its form may change."""

    stream: str
    rejected: bool
    partition: int
    offset: int
    sequence: int  # the collector's number of the event: tells a topic that was made anew

    @classmethod
    def parse(cls, text: str) -> Receipt | None:
        """The receipt that `text` writes, or None."""
        match = _WRITTEN.fullmatch(text)
        if match is None:
            return None
        kind, stream, partition, offset, sequence = match.groups()
        return cls(stream, kind == "r", int(partition), int(offset), int(sequence))

    def __str__(self) -> str:
        kind = "r" if self.rejected else "l"
        return f"{kind}.{self.stream}.{self.partition}.{self.offset}.{self.sequence}"
