"""Events that are in no view, in a topic of their own: finding, reading and naming them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self, TypeVar

from millstream.errors import MillstreamError
from millstream.event import identity
from millstream.log.consumer import bounds, read_range
from millstream.log.held import SECONDS, read_held
from millstream.log.record import Record
from millstream.log.settings import LogSettings


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


E = TypeVar("E", bound=SetAside)


def read_all(
    log: LogSettings, topic: str, stream: str, kind: type[E], since: int = 0
) -> Iterator[E]:
    """All that are still held, from a moment (milliseconds since the epoch) on; blocks.

    In order per partition; partitions one after the other.
    """
    for records in read_held(log, topic, since):
        yield from (kind.of(stream, record) for record in records)


def read_place(
    log: LogSettings, topic: str, kind: type[E], place: tuple[str, int, int], word: str
) -> E:
    """The one at that place; MillstreamError if it is not held there."""
    stream, partition, offset = place
    first, end = bounds(log, topic, SECONDS).get(partition, (0, 0))
    if first <= offset < end:
        for record in read_range(log, topic, partition, offset, offset + 1, patience=SECONDS):
            return kind.of(stream, record)
    held = f"partition {partition} holds {first} to {end - 1}" if first < end else "it holds none"
    raise MillstreamError(
        f"there is no {word} event {stream}/{partition}/{offset}: {held}",
        remedy=f"`millstream {word} list {stream}` names those that are there",
    )
