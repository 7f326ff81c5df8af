"""A record that was read from the log."""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import Message


class Record(NamedTuple):
    """One record; `value` None is a tombstone."""

    topic: str
    partition: int
    offset: int
    timestamp: int  # milliseconds since the epoch
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]

    @classmethod
    def of(cls, message: Message) -> Record:
        return cls(
            message.topic() or "",
            message.partition() or 0,
            message.offset() or 0,
            message.timestamp()[1],
            message.key(),
            message.value(),
            tuple(message.headers() or ()),  # type: ignore[arg-type]
        )
