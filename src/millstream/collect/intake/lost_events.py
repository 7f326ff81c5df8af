"""Counts the events in damaged journal entries, per stream, as far as they can be read.

Most damage is a few bytes of one event. The rest of the entry can then be read well enough to count
its events. The events themselves cannot be trusted: the checksum is wrong.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec

from millstream.collect.formats.unpacked import BodyRefused
from millstream.collect.intake.stream_intake import StreamIntake
from millstream.collect.journal import DamagedPiece, DamageStore
from millstream.collect.journal.record import HEADER, RecordKind, entries_in, split_bookmark
from millstream.collect.raw_message import RawMessage, UnreadableMessage, decode
from millstream.schema.scalars import LATEST


class Contents(NamedTuple):
    """The contents of one damaged entry."""

    stream: str  # empty: unknown
    events: int | None
    received_at: int = 0


def count_lost_events(store: DamageStore, streams: Mapping[str, StreamIntake]) -> None:
    """Count the events of all damaged pieces that are not counted yet. Blocks."""
    for one in store.lost():
        if one.events is None:
            count_and_store(store, one, streams)


def count_and_store(
    store: DamageStore, one: DamagedPiece, streams: Mapping[str, StreamIntake]
) -> DamagedPiece:
    """Count the events of a damaged piece, and store its description. Blocks."""
    counted = with_counts(one, store.data(one), streams)
    store.put(counted)
    return counted


def with_counts(
    one: DamagedPiece, data: bytes, streams: Mapping[str, StreamIntake]
) -> DamagedPiece:
    """A damaged piece with the counts that its bytes still give."""
    found = list(contents(one, data, streams))
    known = [each for each in found if each.events is not None]
    events: Counter[str] = Counter()
    for each in found:
        if each.stream:
            events[each.stream] += each.events or 0
    # A date out of range is damaged too.
    dates = [each.received_at for each in found if 0 < each.received_at <= LATEST]
    return msgspec.structs.replace(
        one,
        events=dict(events),
        unread=max(0, one.entries - len(known)),
        received_at=min(dates, default=0),
    )


def without_logged(one: DamagedPiece, logged: Mapping[int, Collection[int]]) -> DamagedPiece:
    """A damaged piece without the events that are in the log: those are not lost."""
    found = sum(len(places) for sequence, places in logged.items() if one.holds(sequence))
    one = msgspec.structs.replace(one, searched=True)
    if one.unread or not found or one.events is None:
        return one
    if found >= one.known_events:
        return msgspec.structs.replace(one, entries=0, events={})
    if len(one.events) > 1:
        return one
    return msgspec.structs.replace(
        one, events={name: count - found for name, count in one.events.items()}
    )


def contents(
    one: DamagedPiece, data: bytes, streams: Mapping[str, StreamIntake]
) -> Iterator[Contents]:
    """The contents of each lost entry; fewer than `one.entries` if some cannot be found."""
    places = list(entries_in(data, bytes.fromhex(one.mark)))
    # The first entries may be settled: then they are not lost.
    for begin, end in places[max(0, len(places) - one.entries) :]:
        yield _content(data[begin:end], streams)


def _content(record: bytes, streams: Mapping[str, StreamIntake]) -> Contents:
    payload = record[HEADER:]
    if record[8:9] == bytes([RecordKind.ENTRY_WITH_BOOKMARK]):
        try:
            payload = split_bookmark(payload)[2]
        except (ValueError, struct.error):
            return Contents("", None)
    try:
        message = decode(payload)
    except UnreadableMessage:
        return Contents(_stream_of(payload, streams), None)
    stream = streams.get(message.stream)
    if stream is None:
        return Contents("", None)
    return Contents(stream.name, _count(stream, message), message.received_at)


def _count(stream: StreamIntake, message: RawMessage) -> int | None:
    try:
        size = len(stream.unpack(message).values)
    except BodyRefused:
        return None
    return max(0, size - len(message.duplicates) - len(message.shed))


def _stream_of(payload: bytes, streams: Mapping[str, StreamIntake]) -> str:
    """The stream of a message whose end is damaged: its name comes first."""
    names = (name for name in streams if payload[1:].startswith(msgspec.msgpack.encode(name)))
    return next(names, "")
