"""Events as lines of JSON, in batches."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

Event = bytes | str | dict[str, Any] | msgspec.Struct
MAX_BYTES = 1024 * 1024  # of a batch, unless a single event is larger


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Lines, each with the index of its event among all events."""

    indexes: Sequence[int]
    lines: Sequence[bytes]

    @property
    def body(self) -> bytes:
        return b"\n".join(self.lines)

    def only(self, places: Sequence[int]) -> EventBatch:
        """The events at these places of the batch."""
        return EventBatch([self.indexes[p] for p in places], [self.lines[p] for p in places])


def line_of(event: Event) -> bytes:
    """The event on one line: line breaks in JSON have no meaning."""
    if isinstance(event, str):
        event = event.encode()
    if isinstance(event, bytes):
        return event.strip().replace(b"\n", b" ")
    return msgspec.json.encode(event)


async def batches(
    events: Iterable[Event] | AsyncIterable[Event], max_events: int
) -> AsyncIterator[EventBatch]:
    """All events that are not blank, in order, up to `max_events` in a batch."""
    indexes: list[int] = []
    lines: list[bytes] = []
    size = index = 0
    async for event in _each(events):
        line = line_of(event)
        if line and lines and (len(lines) == max_events or size + len(line) > MAX_BYTES):
            yield EventBatch(indexes, lines)
            indexes, lines, size = [], [], 0
        if line:
            indexes.append(index)
            lines.append(line)
            size += len(line)
        index += 1
    if lines:
        yield EventBatch(indexes, lines)


async def _each(events: Iterable[Event] | AsyncIterable[Event]) -> AsyncIterator[Event]:
    if isinstance(events, AsyncIterable):
        async for event in events:
            yield event
    else:
        for event in events:
            yield event
