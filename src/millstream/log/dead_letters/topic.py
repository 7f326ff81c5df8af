"""A topic of dead letters: one for each stream and kind of reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from millstream.errors import MillstreamError
from millstream.log.consumer import bounds, read_range
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.log.topic_contents import TIMEOUT, find_app, read_topic
from millstream.values.dead_letter import Action
from millstream.values.event import identity


@dataclass(frozen=True, slots=True, order=True)
class TopicLetter:
    """A dead letter in a topic. Its headers hold the reason. Sorted by time."""

    at: int  # milliseconds since the epoch
    partition: int
    offset: int
    stream: str = field(compare=False)
    value: bytes = field(compare=False)
    headers: dict[str, str] = field(compare=False)

    @classmethod
    def of(cls, stream: str, record: Record) -> Self:
        headers = {name: value.decode("utf-8", "replace") for name, value in record.headers}
        return cls(
            record.timestamp, record.partition, record.offset, stream, record.value or b"", headers
        )

    @property
    def id(self) -> str:
        return f"{self.stream}/{self.partition}/{self.offset}"

    @property
    def identity(self) -> tuple[str, int, int] | None:
        """Collector, sequence and index, as on its record in the stream."""
        return identity((name, text.encode()) for name, text in self.headers.items())

    @property
    def reason(self) -> str:
        raise NotImplementedError

    @property
    def details(self) -> Mapping[str, Any]:
        return {"headers": self.headers}

    @property
    def facts(self) -> Mapping[str, str]:
        return self.headers


L = TypeVar("L", bound=TopicLetter)


@dataclass(frozen=True, slots=True)
class Kind(Generic[L]):
    """One kind of dead letter that has topics of its own."""

    name: str  # in the topics' names; also the command's name
    letter: type[L]
    topic: Callable[[str, str], str]  # of an app and its stream
    actions: tuple[Action, ...] = ()
    subject: str = "stream"  # what each topic belongs to
    items: str = "events"  # what it holds

    def open(self, log: LogSettings, stream: str, app: str = "") -> DeadLetterTopic[L]:
        """The dead letters of a stream; without `app`, of the only app with such a stream.

        MillstreamError if there is no such stream, or several apps have one.
        """
        found = find_app(log, self.name, stream, self.subject, app=app)
        return DeadLetterTopic(self, log, found, stream)


@dataclass(frozen=True, slots=True)
class DeadLetterTopic(Generic[L]):
    """The dead letters of one kind and one stream. Every call blocks."""

    kind: Kind[L]
    log: LogSettings
    app: str
    stream: str

    @property
    def actions(self) -> tuple[Action, ...]:
        return self.kind.actions

    @property
    def _topic(self) -> str:
        return self.kind.topic(self.app, self.stream)

    def list(self, since: int = 0) -> Iterator[L]:
        """All from this time on, in order per partition, one partition after the other."""
        for records in read_topic(self.log, self._topic, since):
            for record in records:
                if record.timestamp >= since:
                    yield self.kind.letter.of(self.stream, record)

    def get(self, id: str) -> L:  # noqa: A002
        """The dead letter STREAM/PARTITION/OFFSET; MillstreamError if there is none."""
        stream, partition, offset = parse_id(id, self.kind.name)
        if stream != self.stream:
            raise MillstreamError(f"{id} is no event of {self.kind.subject} {self.stream!r}")
        first, end = bounds(self.log, self._topic, TIMEOUT).get(partition, (0, 0))
        if first <= offset < end:
            for record in read_range(
                self.log, self._topic, partition, offset, offset + 1, patience=TIMEOUT
            ):
                return self.kind.letter.of(stream, record)
        held = (
            f"partition {partition} holds {first} to {end - 1}" if first < end else "it holds none"
        )
        raise MillstreamError(
            f"there is no {self.kind.name} event {id}: {held}",
            remedy=f"`millstream {self.kind.name} list {stream}` lists the events that are there",
        )


def parse_id(id: str, kind: str) -> tuple[str, int, int]:  # noqa: A002
    """The stream, partition and offset in an id; MillstreamError if it is not one."""
    stream, *numbers = id.split("/")
    if len(numbers) != 2 or not all(each.isascii() and each.isdigit() for each in numbers):
        raise MillstreamError(
            f"{id!r} is no id of a {kind} event",
            remedy=f"write STREAM/PARTITION/OFFSET, as `millstream {kind} list` prints it",
        )
    return stream, int(numbers[0]), int(numbers[1])
