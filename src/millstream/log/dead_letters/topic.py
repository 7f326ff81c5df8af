"""Events that are in no view, in a topic of their own: finding, reading and naming them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from millstream.errors import MillstreamError
from millstream.log.consumer import bounds, read_range
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.log.topic_contents import SECONDS, find_app, read_held
from millstream.values.event import identity


@dataclass(frozen=True, slots=True, order=True)
class SetAside:
    """An event as it came, with why it is here in its headers. Sorted by time."""

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
        """`STREAM/PARTITION/OFFSET`, by which commands name it."""
        return f"{self.stream}/{self.partition}/{self.offset}"

    @property
    def identity(self) -> tuple[str, int, int] | None:
        """Collector, sequence and index, as on its record in the stream."""
        return identity((name, text.encode()) for name, text in self.headers.items())

    @property
    def reason(self) -> str:
        """Why it is here, in words."""
        raise NotImplementedError

    @property
    def facts(self) -> Mapping[str, str]:
        """What is told of it beside the reason."""
        return self.headers

    @property
    def details(self) -> Mapping[str, Any]:
        """What its kind tells to programs."""
        return {}


E = TypeVar("E", bound=SetAside)


@dataclass(frozen=True, slots=True)
class Shelf(Generic[E]):
    """Where the events are that were set aside for one kind of reason."""

    word: str  # as what: in the topics' names, and the command that looks at them
    kind: type[E]
    topic: Callable[[str, str], str]  # of an app and its stream

    def app_with(self, log: LogSettings, stream: str, app: str = "") -> str:
        """The name of the pipeline with such a stream; MillstreamError if not exactly one has.

        If `app` was asked for, it is that one, or an error.
        """
        return find_app(log, self.word, stream, "stream", app=app)

    def read(self, log: LogSettings, app: str, stream: str, since: int = 0) -> Iterator[E]:
        """All that are still held, from a moment (milliseconds since the epoch) on; blocks.

        In order per partition; partitions one after the other.
        """
        for records in read_held(log, self.topic(app, stream), since):
            yield from (self.kind.of(stream, record) for record in records)

    def read_one(self, log: LogSettings, app: str, stream: str, partition: int, offset: int) -> E:
        """The one at that place; MillstreamError if it is not held there."""
        topic = self.topic(app, stream)
        first, end = bounds(log, topic, SECONDS).get(partition, (0, 0))
        if first <= offset < end:
            for record in read_range(log, topic, partition, offset, offset + 1, patience=SECONDS):
                return self.kind.of(stream, record)
        held = (
            f"partition {partition} holds {first} to {end - 1}" if first < end else "it holds none"
        )
        raise MillstreamError(
            f"there is no {self.word} event {stream}/{partition}/{offset}: {held}",
            remedy=f"`millstream {self.word} list {stream}` names those that are there",
        )
