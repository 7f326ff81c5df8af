"""The events that failed validation: finding, reading and naming them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from confluent_kafka import KafkaException

from millstream.errors import LogError, MillstreamError
from millstream.event import FIELD, REASON
from millstream.log.connection import admin
from millstream.log.consumer import bounds, read_range
from millstream.log.record import Record
from millstream.log.search import offsets_since
from millstream.log.settings import LogSettings
from millstream.log.topics import rejected_topic
from millstream.names import suggest

_SECONDS = 30.0


@dataclass(frozen=True, slots=True, order=True)
class Rejected:
    """An event as it came, and why it was not accepted. Sorted by time."""

    at: int  # milliseconds since the epoch
    partition: int
    offset: int
    stream: str = field(compare=False)
    value: bytes = field(compare=False)
    headers: dict[str, str] = field(compare=False)

    @classmethod
    def of(cls, stream: str, record: Record) -> Rejected:
        headers = {name: value.decode("utf-8", "replace") for name, value in record.headers}
        return cls(
            record.timestamp, record.partition, record.offset, stream, record.value or b"", headers
        )

    @property
    def id(self) -> str:
        """`STREAM/PARTITION/OFFSET`, by which commands name it."""
        return f"{self.stream}/{self.partition}/{self.offset}"

    @property
    def reason(self) -> str:
        return self.headers.get(REASON, "")

    @property
    def field(self) -> str:
        return self.headers.get(FIELD, "")


def app_with(log: LogSettings, stream: str) -> str:
    """The name of the pipeline that has such a stream; MillstreamError if not exactly one has."""
    try:
        topics = admin(log).list_topics(timeout=_SECONDS).topics
    except KafkaException as failure:
        raise LogError(f"cannot ask Kafka for its topics: {failure.args[0].str()}") from failure
    pairs = [name.split(".rejected.") for name in topics if name.count(".rejected.") == 1]
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


def read_rejected(log: LogSettings, app: str, stream: str, since: int = 0) -> Iterator[Rejected]:
    """All that are still held, from a moment (milliseconds since the epoch) on; blocks.

    In order per partition; partitions one after the other.
    """
    topic = rejected_topic(app, stream)
    held = bounds(log, topic, _SECONDS)
    starts = offsets_since(log, {topic: since}) if since else {}
    for partition, (first, end) in sorted(held.items()):
        start = max(first, starts.get((topic, partition), first))
        if start < end:
            for record in read_range(log, topic, partition, start, end, patience=_SECONDS):
                yield Rejected.of(stream, record)


def read_one(log: LogSettings, app: str, stream: str, partition: int, offset: int) -> Rejected:
    """The one at that place; MillstreamError if it is not held there."""
    topic = rejected_topic(app, stream)
    first, end = bounds(log, topic, _SECONDS).get(partition, (0, 0))
    if first <= offset < end:
        for record in read_range(log, topic, partition, offset, offset + 1, patience=_SECONDS):
            return Rejected.of(stream, record)
    held = f"partition {partition} holds {first} to {end - 1}" if first < end else "it holds none"
    raise MillstreamError(
        f"there is no rejected event {stream}/{partition}/{offset}: {held}",
        remedy=f"`millstream rejected list {stream}` names those that are there",
    )
