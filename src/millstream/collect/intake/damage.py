"""What damaged entries of the journal held: streams and numbers of events, as far as known.

Most damage is a few bytes of one event. Then the rest of the entry can still be read well enough to
count its events, though not to trust them: their checksum is wrong.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec

from millstream.collect.arrival import Arrival, UnreadableArrival, decode
from millstream.collect.formats.unpacked import BodyRefused
from millstream.collect.intake.lane import Lane
from millstream.collect.journal import Damaged, DamageStore
from millstream.collect.journal.record import HEADER, Kind, entries_in, split_bookmark
from millstream.schema.scalars import LATEST


class Contents(NamedTuple):
    """What one damaged entry held."""

    stream: str  # empty: it cannot be told
    events: int | None
    received_at: int = 0


def explain(store: DamageStore, lanes: Mapping[str, Lane]) -> None:
    """Write down what each piece held that nobody has looked at yet. Blocks."""
    for one in store.lost():
        if one.events is None:
            store.put(explained(one, store.data(one), lanes))


def explained(one: Damaged, data: bytes, lanes: Mapping[str, Lane]) -> Damaged:
    """A damaged piece with what its bytes still tell."""
    found = list(contents(one, data, lanes))
    known = [each for each in found if each.events is not None]
    events: Counter[str] = Counter()
    for each in found:
        if each.stream:
            events[each.stream] += each.events or 0
    # What is no date is damaged, too.
    dates = [each.received_at for each in found if 0 < each.received_at <= LATEST]
    return msgspec.structs.replace(
        one,
        events=dict(events),
        unread=max(0, one.entries - len(known)),
        received_at=min(dates, default=0),
    )


def without(one: Damaged, arrived: Mapping[int, Collection[int]]) -> Damaged:
    """A damaged piece without the events that are in the log, which are not lost."""
    found = sum(len(places) for sequence, places in arrived.items() if one.holds(sequence))
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


def contents(one: Damaged, data: bytes, lanes: Mapping[str, Lane]) -> Iterator[Contents]:
    """What each entry that was lost held; fewer than `one.entries` if some cannot be found."""
    places = list(entries_in(data, bytes.fromhex(one.mark)))
    # The first ones may have been settled: then they are not lost.
    for begin, end in places[max(0, len(places) - one.entries) :]:
        yield _content(data[begin:end], lanes)


def _content(record: bytes, lanes: Mapping[str, Lane]) -> Contents:
    payload = record[HEADER:]
    if record[8:9] == bytes([Kind.ENTRY_WITH_BOOKMARK]):
        try:
            payload = split_bookmark(payload)[2]
        except (ValueError, struct.error):
            return Contents("", None)
    try:
        arrival = decode(payload)
    except UnreadableArrival:
        return Contents(_stream_of(payload, lanes), None)
    lane = lanes.get(arrival.stream)
    if lane is None:
        return Contents("", None)
    return Contents(lane.name, _count(lane, arrival), arrival.received_at)


def _count(lane: Lane, arrival: Arrival) -> int | None:
    try:
        size = len(lane.unpack(arrival).values)
    except BodyRefused:
        return None
    return max(0, size - len(arrival.duplicates) - len(arrival.shed))


def _stream_of(payload: bytes, lanes: Mapping[str, Lane]) -> str:
    """The stream of an arrival whose end cannot be read: its name comes first."""
    names = (name for name in lanes if payload[1:].startswith(msgspec.msgpack.encode(name)))
    return next(names, "")
