"""Events that are in no view, in a topic of their own: finding, reading and naming them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self, TypeVar

from confluent_kafka import KafkaException

from millstream.errors import LogError, MillstreamError
from millstream.log.connection import admin
from millstream.log.consumer import bounds, read_range
from millstream.log.record import Record
from millstream.log.search import offsets_since
from millstream.log.settings import LogSettings
from millstream.names import suggest

_SECONDS = 30.0


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


E = TypeVar("E", bound=SetAside)


def app_with(log: LogSettings, stream: str, kind: str = "rejected") -> str:
    """The name of the pipeline that has such a stream; MillstreamError if not exactly one has."""
    try:
        topics = admin(log).list_topics(timeout=_SECONDS).topics
    except KafkaException as failure:
        raise LogError(f"cannot ask Kafka for its topics: {failure.args[0].str()}") from failure
    infix = f".{kind}."
    pairs = [name.split(infix) for name in topics if name.count(infix) == 1]
    found = sorted(app for app, name in pairs if name == stream)
    if len(found) == 1:
        return found[0]
    if found:
        raise MillstreamError(
            f"several pipelines have a stream {stream!r}: {', '.join(found)}",
            remedy="say which one: --app NAME",
        )
    known = sorted({name for _, name in pairs})
    raise MillstreamError(
        f"the log has no stream {stream!r}", remedy=suggest(stream, known) if known else ""
    )


def read_all(
    log: LogSettings, topic: str, stream: str, kind: type[E], since: int = 0
) -> Iterator[E]:
    """All that are still held, from a moment (milliseconds since the epoch) on; blocks.

    In order per partition; partitions one after the other.
    """
    held = bounds(log, topic, _SECONDS)
    starts = offsets_since(log, {topic: since}) if since else {}
    for partition, (first, end) in sorted(held.items()):
        start = max(first, starts.get((topic, partition), first))
        if start < end:
            for record in read_range(log, topic, partition, start, end, patience=_SECONDS):
                yield kind.of(stream, record)


def read_place(
    log: LogSettings, topic: str, kind: type[E], place: tuple[str, int, int], word: str
) -> E:
    """The one at that place; MillstreamError if it is not held there."""
    stream, partition, offset = place
    first, end = bounds(log, topic, _SECONDS).get(partition, (0, 0))
    if first <= offset < end:
        for record in read_range(log, topic, partition, offset, offset + 1, patience=_SECONDS):
            return kind.of(stream, record)
    held = f"partition {partition} holds {first} to {end - 1}" if first < end else "it holds none"
    raise MillstreamError(
        f"there is no {word} event {stream}/{partition}/{offset}: {held}",
        remedy=f"`millstream {word} list {stream}` names those that are there",
    )
