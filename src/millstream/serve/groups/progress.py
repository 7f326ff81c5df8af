"""How far a group has handled one partition."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal

Partition = tuple[str, int]  # topic, partition
Outcome = Literal["acknowledged", "set_aside", "filtered"]


@dataclass(slots=True, eq=False)
class Message:
    """One message of a group, and what became of it."""

    id: str  # `<partition>-<offset>`, as members get it
    partition: Partition
    offset: int
    key: Hashable | None  # messages with the same key are delivered in order; None: no order
    body: bytes  # for members: JSON members without the braces
    position: str = ""  # in its source, after this message
    attempt: int = 0
    member: Hashable | None = None  # who has it now
    failed_with: Hashable | None = None  # the member whose attempt failed last
    reason: str = ""  # why the last attempt failed
    outcome: Outcome | None = None  # None: not handled yet


@dataclass(slots=True)
class Counts:
    """What became of the records below a partition's position."""

    acknowledged: int = 0
    set_aside: int = 0
    filtered: int = 0  # records that are no message for this group


@dataclass(slots=True)
class Progress:
    """The records of a partition from its position on, in order.

    The position is the offset below which everything is handled. What is handled beyond it is
    known only here: after a crash it is delivered again.
    """

    next_offset: int  # the next record to read
    counts: Counts = field(default_factory=Counts)
    # Failed attempts of messages that this server has not read yet, by offset: they failed before,
    # perhaps on another server.
    attempts: dict[int, int] = field(default_factory=dict)
    unhandled: int = 0
    unhandled_bytes: int = 0
    _records: deque[tuple[int, Message | None]] = field(default_factory=deque)

    @property
    def position(self) -> int:
        return self._records[0][0] if self._records else self.next_offset

    @property
    def span(self) -> int:
        """Records that are remembered because an earlier one is not handled yet."""
        return len(self._records)

    @property
    def messages(self) -> list[Message]:
        """Messages that are not handled yet, in order."""
        return [each for _, each in self._records if each is not None and each.outcome is None]

    def failed_attempts(self, limit: int) -> dict[int, int]:
        """How often the oldest unhandled messages have failed, by offset."""
        found = dict(self.attempts)
        for offset, message in self._records:
            if len(found) >= limit:
                break
            if message is not None and message.outcome is None:
                # A message that is in flight may still succeed.
                failed = message.attempt - (message.member is not None)
                if failed:
                    found[offset] = failed
        return found

    def add(self, offset: int, message: Message | None) -> None:
        """Add the record at `offset`; None: it is no message for this group."""
        self.next_offset = offset + 1
        self._records.append((offset, message))
        if message is None:
            self._advance()
        else:
            message.attempt = self.attempts.pop(offset, 0)
            self.unhandled += 1
            self.unhandled_bytes += len(message.body)

    def finish(self, message: Message, outcome: Outcome) -> None:
        message.outcome = outcome
        self.unhandled -= 1
        self.unhandled_bytes -= len(message.body)
        self._advance()

    def _advance(self) -> None:
        records, counts = self._records, self.counts
        while records:
            message = records[0][1]
            if message is None:
                counts.filtered += 1
            elif message.outcome == "acknowledged":
                counts.acknowledged += 1
            elif message.outcome == "set_aside":
                counts.set_aside += 1
            else:
                return
            records.popleft()
