"""Recent senders' ids, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from hashlib import blake2b

import msgspec

from millstream.values.clock import now_ms

_PARTS = 12  # buckets of a window; each lookup tries about as many dicts
# An Original is packed into one int, which takes a third of a tuple's memory. Numbers of bits:
_INDEX, _COUNT, _SEQUENCE, _COLLECTOR = 28, 28, 56, 20
_AT_COUNT = _INDEX
_AT_SEQUENCE = _AT_COUNT + _COUNT
_AT_COLLECTOR = _AT_SEQUENCE + _SEQUENCE
_AT_TIME = _AT_COLLECTOR + _COLLECTOR


class Original(msgspec.Struct, frozen=True):
    """The event that had an id first: its identity in the log."""

    collector: str
    sequence: int
    index: int
    received_at: int  # milliseconds since the epoch
    count: int = 1  # events of the entry that the id covers, from `index` on

    def is_same_event(self, other: Original) -> bool:
        """Whether both are the same event: a recovered event is no duplicate of itself."""
        return (self.sequence, self.index, self.collector) == (
            other.sequence,
            other.index,
            other.collector,
        )


def dedup_id(source: str, name: str) -> bytes:
    """The digest of a CloudEvent's source and id (`name`)."""
    # The length in front keeps different pairs from giving the same text.
    text = f"{len(source)}:{source}{name}".encode()
    return blake2b(text, digest_size=16, person=b"cloudevent").digest()


def idempotency_id(key: str, sender: str = "") -> bytes:
    """The digest of an Idempotency-Key; `sender` is the authenticated caller, if any."""
    text = f"{len(sender)}:{sender}{key}".encode()
    return blake2b(text, digest_size=16, person=b"idempotency").digest()


class _Bucket:
    """Ids that were added one after the other, and are forgotten together."""

    __slots__ = ("ids", "newest", "opened")

    def __init__(self, opened: int) -> None:
        self.ids: dict[bytes, int] = {}
        self.opened = self.newest = opened  # milliseconds since the epoch


class RememberedIds:
    """The ids of each stream's window, with the event that had each first.

    Holds at most `most` ids in all: beyond, the oldest are forgotten early, and counted.
    """

    def __init__(
        self,
        windows: Mapping[str, int],
        most: int,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        """`windows`: in milliseconds, by stream; ids of other streams are not remembered."""
        self._windows = windows
        self.most = most
        self._full = max(1, most // _PARTS)
        self._clock = clock
        self._buckets: dict[str, deque[_Bucket]] = {name: deque() for name in windows}
        self._collectors: list[str] = []
        self._numbers: dict[str, int] = {}  # by collector
        self._held = 0
        self.forgotten = 0  # before their window ended

    def __len__(self) -> int:
        return self._held

    def get(self, stream: str, digest: bytes) -> Original | None:
        """The event that had the id first within the stream's window; None if none had."""
        for bucket in reversed(self._buckets.get(stream, ())):
            packed = bucket.ids.get(digest)
            if packed is not None:
                if (packed >> _AT_TIME) + self._windows[stream] > self._clock():
                    return self._unpack(packed)
                return None  # older buckets can only hold an older one
        return None

    def add(self, stream: str, digest: bytes, original: Original) -> Original | None:
        """Remember the id, unless another event has it: that one is returned."""
        buckets = self._buckets.get(stream)
        if buckets is None:
            return None
        held = self.get(stream, digest)
        if held is not None:
            return None if held.is_same_event(original) else held
        if original.received_at + self._windows[stream] <= self._clock():
            return None
        bucket = self._open(stream, buckets, original.received_at)
        before = len(bucket.ids)
        bucket.ids[digest] = self._pack(original)
        self._held += len(bucket.ids) - before
        bucket.newest = max(bucket.newest, original.received_at)
        return None

    def remove(self, stream: str, digest: bytes, original: Original) -> None:
        """Forget an id whose event was not accepted."""
        for bucket in self._buckets.get(stream, ()):
            packed = bucket.ids.get(digest)
            if packed is not None and self._unpack(packed).is_same_event(original):
                del bucket.ids[digest]
                self._held -= 1

    def _open(self, stream: str, buckets: deque[_Bucket], at: int) -> _Bucket:
        """The bucket to add to."""
        while buckets and self._is_over(stream, buckets[0]):
            self._held -= len(buckets.popleft().ids)
        if self._held >= self.most:
            self._make_room()
        if (
            not buckets
            or len(buckets[-1].ids) >= self._full
            or at - buckets[-1].opened > self._windows[stream] // _PARTS
        ):
            buckets.append(_Bucket(at))
        return buckets[-1]

    def _make_room(self) -> None:
        for stream, buckets in self._buckets.items():
            while buckets and self._is_over(stream, buckets[0]):
                self._held -= len(buckets.popleft().ids)
        while self._held >= self.most:  # the oldest bucket may be empty after `remove`
            oldest = min((b for b in self._buckets.values() if b), key=lambda b: b[0].newest)
            gone = len(oldest.popleft().ids)
            self._held -= gone
            self.forgotten += gone

    def _is_over(self, stream: str, bucket: _Bucket) -> bool:
        return bucket.newest + self._windows[stream] <= self._clock()

    def _pack(self, original: Original) -> int:
        number = self._numbers.get(original.collector)
        if number is None:
            number = self._numbers[original.collector] = len(self._collectors)
            self._collectors.append(original.collector)
        return (
            original.index
            | original.count << _AT_COUNT
            | original.sequence << _AT_SEQUENCE
            | number << _AT_COLLECTOR
            | original.received_at << _AT_TIME
        )

    def _unpack(self, packed: int) -> Original:
        return Original(
            self._collectors[packed >> _AT_COLLECTOR & (1 << _COLLECTOR) - 1],
            packed >> _AT_SEQUENCE & (1 << _SEQUENCE) - 1,
            packed & (1 << _INDEX) - 1,
            packed >> _AT_TIME,
            packed >> _AT_COUNT & (1 << _COUNT) - 1,
        )
