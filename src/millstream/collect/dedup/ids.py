"""Senders' ids of the last while, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from hashlib import blake2b

import msgspec

from millstream.values.clock import now_ms

_PARTS = 12  # a window is forgotten in so many steps; each lookup tries about as many dicts
# A First as one int, a third of a tuple's memory: bits of index, count, sequence, collector, time.
_INDEX, _COUNT, _SEQUENCE, _COLLECTOR = 28, 28, 56, 20
_AT_COUNT = _INDEX
_AT_SEQUENCE = _AT_COUNT + _COUNT
_AT_COLLECTOR = _AT_SEQUENCE + _SEQUENCE
_AT_TIME = _AT_COLLECTOR + _COLLECTOR


class First(msgspec.Struct, frozen=True):
    """Which event had an id first; its identity in the log."""

    collector: str
    sequence: int
    index: int
    received_at: int  # milliseconds since the epoch
    count: int = 1  # how many events of the entry the id is for, from `index` on

    def is_same_event(self, other: First) -> bool:
        """Whether both speak of one event: a recovered one is no duplicate of itself."""
        return (self.sequence, self.index, self.collector) == (
            other.sequence,
            other.index,
            other.collector,
        )


def dedup_id(source: str, name: str) -> bytes:
    """What a CloudEvent's source and id (`name`) are remembered by."""
    # With its length in front, no other pair of texts runs together into the same.
    text = f"{len(source)}:{source}{name}".encode()
    return blake2b(text, digest_size=16, person=b"cloudevent").digest()


def idempotency_id(key: str, sender: str = "") -> bytes:
    """What an Idempotency-Key is remembered by; `sender` is who was authenticated, if anyone."""
    text = f"{len(sender)}:{sender}{key}".encode()
    return blake2b(text, digest_size=16, person=b"idempotency").digest()


class _Bucket:
    """Ids that came one after the other, and are forgotten together."""

    __slots__ = ("ids", "newest", "opened")

    def __init__(self, opened: int) -> None:
        self.ids: dict[bytes, int] = {}
        self.opened = self.newest = opened  # milliseconds since the epoch


class Ids:
    """For each stream the ids of its window, and who had them first.

    Never more than `most` ids in all: beyond, the oldest are forgotten early, and counted.
    """

    def __init__(
        self,
        windows: Mapping[str, int],
        most: int,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        """`windows` in milliseconds; other streams' ids are not kept."""
        self._windows = windows
        self.most = most
        self._full = max(1, most // _PARTS)
        self._clock = clock
        self._buckets: dict[str, deque[_Bucket]] = {name: deque() for name in windows}
        self._collectors: list[str] = []
        self._numbers: dict[str, int] = {}  # the reverse
        self._held = 0
        self.forgotten = 0  # before their window was over

    def __len__(self) -> int:
        return self._held

    def get(self, stream: str, digest: bytes) -> First | None:
        """Who had the id first within the stream's window; None if nobody."""
        for bucket in reversed(self._buckets.get(stream, ())):
            packed = bucket.ids.get(digest)
            if packed is not None:
                if (packed >> _AT_TIME) + self._windows[stream] > self._clock():
                    return self._unpack(packed)
                return None  # whatever older buckets say is older still
        return None

    def add(self, stream: str, digest: bytes, first: First) -> First | None:
        """Remember the id. If another had it first, that one is returned, and stays."""
        buckets = self._buckets.get(stream)
        if buckets is None:
            return None
        held = self.get(stream, digest)
        if held is not None:
            return None if held.is_same_event(first) else held
        if first.received_at + self._windows[stream] <= self._clock():
            return None
        bucket = self._open(stream, buckets, first.received_at)
        before = len(bucket.ids)
        bucket.ids[digest] = self._pack(first)
        self._held += len(bucket.ids) - before
        bucket.newest = max(bucket.newest, first.received_at)
        return None

    def remove(self, stream: str, digest: bytes, first: First) -> None:
        """Forget an id whose event was not taken in after all."""
        for bucket in self._buckets.get(stream, ()):
            packed = bucket.ids.get(digest)
            if packed is not None and self._unpack(packed).is_same_event(first):
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
        while self._held >= self.most:  # the oldest may be empty: what it held was taken back
            oldest = min((b for b in self._buckets.values() if b), key=lambda b: b[0].newest)
            gone = len(oldest.popleft().ids)
            self._held -= gone
            self.forgotten += gone

    def _is_over(self, stream: str, bucket: _Bucket) -> bool:
        return bucket.newest + self._windows[stream] <= self._clock()

    def _pack(self, first: First) -> int:
        number = self._numbers.get(first.collector)
        if number is None:
            number = self._numbers[first.collector] = len(self._collectors)
            self._collectors.append(first.collector)
        return (
            first.index
            | first.count << _AT_COUNT
            | first.sequence << _AT_SEQUENCE
            | number << _AT_COLLECTOR
            | first.received_at << _AT_TIME
        )

    def _unpack(self, packed: int) -> First:
        return First(
            self._collectors[packed >> _AT_COLLECTOR & (1 << _COLLECTOR) - 1],
            packed >> _AT_SEQUENCE & (1 << _SEQUENCE) - 1,
            packed & (1 << _INDEX) - 1,
            packed >> _AT_TIME,
            packed >> _AT_COUNT & (1 << _COUNT) - 1,
        )
