"""Finds the events of an entry that were handed in before, and sees that its own are remembered."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from millstream.collect.arrival import Arrival
from millstream.collect.dedup.dedup import Dedup, First, dedup_id, idempotency_id
from millstream.collect.intake.entry import Claim, Entry


def carries_ids(arrival: Arrival) -> bool:
    """Whether a retry of it could be recognised. Cheap: the body is not looked at."""
    return bool(
        arrival.idempotency_key
        or "id" in arrival.attributes
        or "cloudevents" in arrival.content_type.lower()
    )


class Repeats:
    """Of all streams that remember ids. An entry's events are checked before it comes here."""

    def __init__(self, dedup: Dedup, collector: str) -> None:
        self.dedup = dedup
        self._collector = collector

    def find(self, entry: Entry) -> First | None:
        """Note in the entry which events were handed in before, and the ids that are new.

        If the whole request was, by its Idempotency-Key, the answer is its first event.
        """
        stream = entry.lane.name
        key = _key_of(entry)
        # Whether it is valid or not: under a key that was used, nothing else is taken in.
        whole = None if key is None else self.dedup.seen(stream, key.digest)
        firsts: dict[int, First] = {}
        own: dict[bytes, int] = {}
        inside: dict[int, int] = {}  # repeats within the body, and of which place
        for claim in _event_ids(entry):
            if (first := self.dedup.seen(stream, claim.digest)) is not None:
                firsts[claim.at] = first
            elif claim.digest in own:
                inside[claim.at] = own[claim.digest]
            else:
                own[claim.digest] = claim.at
        entry.firsts, entry.inside = firsts, inside
        entry.claims = [Claim(digest, index) for digest, index in own.items()]
        if key is not None and _is_worth_a_key(entry):
            entry.claims = [*entry.claims, key]
        places = tuple(sorted({*firsts, *inside}))
        if places:
            entry.arrival = msgspec.structs.replace(entry.arrival, duplicates=places)
            entry.skip = frozenset(places)
        return whole

    def reserve(self, entry: Entry) -> None:
        """The entry has its number: from now on its ids are known here."""
        if entry.inside:
            inside = {index: self._first(entry, of) for index, of in entry.inside.items()}
            entry.firsts = {**entry.firsts, **inside}
        for claim in entry.claims:
            first = self._first(entry, claim.at, claim.events)
            self.dedup.reserve(entry.lane.name, claim.digest, first)

    def release(self, entry: Entry) -> None:
        """The entry did not get onto the disk."""
        for claim in entry.claims:
            self.dedup.release(entry.lane.name, claim.digest, self._first(entry, claim.at))

    def claim(self, entry: Entry) -> bool:
        """The entry is on disk: tell the others. False, and nothing done, if Kafka is behind."""
        if not self.dedup.has_room(entry.lane.name):
            return False
        for claim in entry.claims:
            first = self._first(entry, claim.at, claim.events)
            self.dedup.confirm(entry.lane.name, claim.digest, first)
        self.wait(entry)
        return True

    async def claim_again(self, entry: Entry) -> None:
        """As `claim`, for an entry that was read back from disk; waits until Kafka has room."""
        entry.claims = list(_claims(entry))
        await self.dedup.room(entry.lane.name)
        self.claim(entry)

    def wait(self, entry: Entry) -> None:
        """Let it be sent when its ids are in their topic, and not before.

        Else, after a crash in between, another collector would take a retry of it for new.
        """
        written = self.dedup.written(entry.lane.name)
        entry.claimed = None if written.done() else written

    async def recover(self, entry: Entry, arrived: Collection[int]) -> frozenset[int]:
        """Claim what an earlier start may not have claimed any more.

        The answer is what another collector has taken in meanwhile, from a sender that had no
        answer from us. It was not sent by us, since it was not claimed: it need not be.
        """
        stream, taken = entry.lane.name, set[int]()
        for claim in _claims(entry):
            first = self._first(entry, claim.at, claim.events)
            places = set(range(claim.at, claim.at + claim.events))
            seen = self.dedup.seen(stream, claim.digest)
            if seen is None:
                await self.dedup.room(stream)
                self.dedup.claim(stream, claim.digest, first)
            elif seen.collector != self._collector and places.isdisjoint(arrived):
                taken |= places - entry.rejections.keys()
        return frozenset(taken - entry.skip)

    def _first(self, entry: Entry, index: int, count: int = 1) -> First:
        return First(self._collector, entry.sequence, index, entry.arrival.received_at, count)


def _claims(entry: Entry) -> Iterator[Claim]:
    """The ids that an entry stands for: those of the events that are not left out."""
    yield from _event_ids(entry)
    if (key := _key_of(entry)) is not None and _is_worth_a_key(entry):
        yield key


def _key_of(entry: Entry) -> Claim | None:
    arrival = entry.arrival
    if not arrival.idempotency_key:
        return None
    return Claim(idempotency_id(arrival.idempotency_key, arrival.sender), 0, entry.size)


def _is_worth_a_key(entry: Entry) -> bool:
    """Whether anything of it is taken in; if not, its sender may mend it under the same key."""
    return len(entry.rejections) < entry.size


def _event_ids(entry: Entry) -> Iterator[Claim]:
    for index, given in enumerate(entry.attributes or ()):
        # By CloudEvents, source and id together say which event it is.
        has_id = "id" in given and "source" in given
        if has_id and index not in entry.rejections and index not in entry.skip:
            yield Claim(dedup_id(given["source"], given["id"]), index)


def repeat_of(whole: First, entry: Entry) -> Entry:
    """The entry of a request that was handed in before, as a whole: the first one's answer counts.

    By their ids, some of its events can be repeats of others still.
    """
    repeats = {
        index: msgspec.structs.replace(whole, index=whole.index + index, count=1)
        for index in range(whole.count)
    }
    if whole.count != entry.size or len(entry.rejections) == entry.size:
        entry.note = (
            f"the Idempotency-Key came before with another body, of {whole.count} events: that "
            "one counts, and nothing of this one was taken in"
        )
        entry.firsts, entry.rejections = repeats, {}
    else:
        entry.firsts = {**repeats, **entry.firsts}
    entry.claims, entry.inside = (), {}
    places = tuple(range(entry.size))
    entry.arrival = msgspec.structs.replace(entry.arrival, duplicates=places)
    entry.skip = frozenset(places)
    return entry
