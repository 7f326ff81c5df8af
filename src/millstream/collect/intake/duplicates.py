"""Finds duplicates among an entry's events, and remembers the ids of the others."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from millstream.collect.dedup.dedup import Dedup, Original, dedup_id, idempotency_id
from millstream.collect.intake.entry import Entry, IdClaim
from millstream.collect.raw_message import RawMessage


def carries_ids(message: RawMessage) -> bool:
    """Whether a retry of the message could be recognised. Cheap: the body is not read."""
    return bool(
        message.idempotency_key
        or "id" in message.attributes
        or "cloudevents" in message.content_type.lower()
    )


class Duplicates:
    """Duplicates of all streams that remember ids. Entries must be checked before."""

    def __init__(self, dedup: Dedup, collector: str) -> None:
        self.dedup = dedup
        self._collector = collector

    def find(self, entry: Entry) -> Original | None:
        """Mark the entry's duplicates, and set its new ids.

        If the Idempotency-Key was used before, the first event of that request is returned.
        """
        stream = entry.stream.name
        key = _key_of(entry)
        # Even if the events are invalid: nothing else is accepted under a used key.
        original_request = None if key is None else self.dedup.seen(stream, key.digest)
        originals: dict[int, Original] = {}
        own: dict[bytes, int] = {}
        inside: dict[int, int] = {}  # duplicates within the body: the index of the original
        for claim in _event_ids(entry):
            if (original := self.dedup.seen(stream, claim.digest)) is not None:
                originals[claim.first_index] = original
            elif claim.digest in own:
                inside[claim.first_index] = own[claim.digest]
            else:
                own[claim.digest] = claim.first_index
        entry.originals, entry.inner_duplicates = originals, inside
        entry.id_claims = [IdClaim(digest, index) for digest, index in own.items()]
        if key is not None and _claims_key(entry):
            entry.id_claims = [*entry.id_claims, key]
        places = tuple(sorted({*originals, *inside}))
        if places:
            entry.message = msgspec.structs.replace(entry.message, duplicates=places)
            entry.skip = frozenset(places)
        return original_request

    def reserve(self, entry: Entry) -> None:
        """Remember an appended entry's ids in memory."""
        if entry.inner_duplicates:
            inside = {
                index: self._original(entry, of) for index, of in entry.inner_duplicates.items()
            }
            entry.originals = {**entry.originals, **inside}
        for claim in entry.id_claims:
            original = self._original(entry, claim.first_index, claim.events)
            self.dedup.reserve(entry.stream.name, claim.digest, original)

    def release(self, entry: Entry) -> None:
        """Forget the ids of an entry that was not written to disk."""
        for claim in entry.id_claims:
            self.dedup.release(
                entry.stream.name, claim.digest, self._original(entry, claim.first_index)
            )

    def claim(self, entry: Entry) -> bool:
        """Write the ids of a stored entry to their topic; False, unchanged, if Kafka is behind."""
        if not self.dedup.has_room(entry.stream.name):
            return False
        for claim in entry.id_claims:
            original = self._original(entry, claim.first_index, claim.events)
            self.dedup.confirm(entry.stream.name, claim.digest, original)
        self.hold_until_written(entry)
        return True

    async def claim_again(self, entry: Entry) -> None:
        """As `claim`, for an entry that was read back from disk; waits until Kafka keeps up."""
        entry.id_claims = list(_claims(entry))
        await self.dedup.wait_for_room(entry.stream.name)
        self.claim(entry)

    def hold_until_written(self, entry: Entry) -> None:
        """Have the entry sent only when its ids are in their topic.

        Otherwise, after a crash in between, another collector would accept a retry as new.
        """
        written = self.dedup.written(entry.stream.name)
        entry.ids_written = None if written.done() else written

    async def recover(self, entry: Entry, logged: Collection[int]) -> frozenset[int]:
        """Write the ids that an earlier start may not have written.

        Returns the indexes of events that another collector has accepted meanwhile, from a sender
        that got no answer here. They are not in the log from here, and need not be sent.
        """
        stream, taken = entry.stream.name, set[int]()
        for claim in _claims(entry):
            original = self._original(entry, claim.first_index, claim.events)
            places = set(range(claim.first_index, claim.first_index + claim.events))
            seen = self.dedup.seen(stream, claim.digest)
            if seen is None:
                await self.dedup.wait_for_room(stream)
                self.dedup.claim(stream, claim.digest, original)
            elif seen.collector != self._collector and places.isdisjoint(logged):
                taken |= places - entry.rejections.keys()
        return frozenset(taken - entry.skip)

    def _original(self, entry: Entry, index: int, count: int = 1) -> Original:
        return Original(self._collector, entry.sequence, index, entry.message.received_at, count)


def _claims(entry: Entry) -> Iterator[IdClaim]:
    """The ids of an entry's events, without skipped events."""
    yield from _event_ids(entry)
    if (key := _key_of(entry)) is not None and _claims_key(entry):
        yield key


def _key_of(entry: Entry) -> IdClaim | None:
    message = entry.message
    if not message.idempotency_key:
        return None
    return IdClaim(idempotency_id(message.idempotency_key, message.sender), 0, entry.size)


def _claims_key(entry: Entry) -> bool:
    """Whether any event is valid; if not, the sender may correct the request under the same key."""
    return len(entry.rejections) < entry.size


def _event_ids(entry: Entry) -> Iterator[IdClaim]:
    for index, given in enumerate(entry.attributes or ()):
        # In CloudEvents, source and id together identify an event.
        has_id = "id" in given and "source" in given
        if has_id and index not in entry.rejections and index not in entry.skip:
            yield IdClaim(dedup_id(given["source"], given["id"]), index)


def mark_all_duplicates(entry: Entry, original: Original) -> None:
    """Mark all events of a repeated request as duplicates of the first request's events.

    Events that are duplicates by their own ids keep their originals.
    """
    originals = {
        index: msgspec.structs.replace(original, index=original.index + index, count=1)
        for index in range(original.count)
    }
    if original.count != entry.size or len(entry.rejections) == entry.size:
        entry.note = (
            f"the Idempotency-Key came before with another body, of {original.count} events: that "
            "one counts, and nothing of this one was taken in"
        )
        entry.originals, entry.rejections = originals, {}
    else:
        entry.originals = {**originals, **entry.originals}
    entry.id_claims, entry.inner_duplicates = (), {}
    places = tuple(range(entry.size))
    entry.message = msgspec.structs.replace(entry.message, duplicates=places)
    entry.skip = frozenset(places)
