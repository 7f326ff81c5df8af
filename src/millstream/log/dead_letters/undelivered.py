"""Messages that no member of a group could handle.

A group's topic holds the newest record of each message: it is set aside, or it is to be delivered
again. A tombstone means that it was dropped. The key is the message's position in its source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from millstream.log.dead_letters.topic import DeadLetterTopic, Kind, TopicLetter
from millstream.log.producing.producer import Producer
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.log.topic_contents import find_app, read_topic
from millstream.log.topic_names import undelivered_topic

State = Literal["set_aside", "retry"]
STATE, REASON, ATTEMPTS, POSITION, ORDER = (
    "group_state",
    "group_reason",
    "group_attempts",
    "group_position",
    "group_order",  # messages with the same one are delivered in order
)


class Undelivered(TopicLetter):
    """A message as members got it, and why the last attempt failed."""

    __slots__ = ()

    @property
    def reason(self) -> str:
        attempts = self.headers.get(ATTEMPTS, "")
        return f"{self.headers.get(REASON, '')} (attempts: {attempts})"

    @property
    def position(self) -> str:
        return self.headers.get(POSITION, "")

    @property
    def details(self) -> dict[str, Any]:
        return {"position": self.position, "attempts": self.headers.get(ATTEMPTS, "")}

    @property
    def facts(self) -> dict[str, str]:
        return {"position": self.position}


def state_of(record: Record) -> State | None:
    """What a record says about its message; None if the message was dropped."""
    if record.value is None:
        return None
    return "retry" if (STATE, b"retry") in record.headers else "set_aside"


class UndeliveredTopic(DeadLetterTopic[Undelivered]):
    """The messages of one group that are set aside."""

    __slots__ = ()

    def list(self, since: int = 0) -> Iterator[Undelivered]:
        """Those that are set aside now, by the time when that happened."""
        newest: dict[bytes, Record] = {}
        for records in read_topic(self.log, self._topic):
            for record in records:
                newest[record.key or b""] = record
        for record in sorted(newest.values(), key=lambda each: each.offset):
            if state_of(record) == "set_aside" and record.timestamp >= since:
                yield Undelivered.of(self.stream, record)

    async def send_again(self, producer: Producer, letters: Sequence[Undelivered]) -> None:
        """Let the group deliver these messages again; returns when Kafka has the requests."""
        for letter in letters:
            headers = {**letter.headers, STATE: "retry"}
            await producer.send(self._topic, letter.value, key=letter.position, headers=headers)

    async def drop(self, producer: Producer, letters: Sequence[Undelivered]) -> None:
        """Remove these messages for good; returns when Kafka knows."""
        for letter in letters:
            await producer.send(self._topic, None, key=letter.position)


@dataclass(frozen=True, slots=True)
class UndeliveredKind(Kind[Undelivered]):
    """The messages of groups; `stream` is the group's name here."""

    def open(self, log: LogSettings, stream: str, app: str = "") -> UndeliveredTopic:
        found = find_app(log, self.name, stream, self.subject, app=app)
        return UndeliveredTopic(self, log, found, stream)


UNDELIVERED = UndeliveredKind(
    "undelivered", Undelivered, undelivered_topic, ("retry", "drop"), "group", "messages"
)
