"""A cache of compiled texts, limited by their total length."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")
_ENTRY = 100  # characters that an entry counts in addition to its text


class TextCache(Generic[T]):
    """Results for the most recently used texts, of at most `capacity` characters in total.

    The size of compiled code is proportional to its text, so this also limits memory.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._size = 0
        self._held: OrderedDict[Hashable, tuple[int, T]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable, length: int, make: Callable[[], T]) -> T:
        """The cached result for the key, or that of `make`; `length` is the length of its text."""
        with self._lock:
            if (held := self._held.get(key)) is not None:
                self._held.move_to_end(key)
                return held[1]
        made = make()
        with self._lock:
            if key not in self._held:
                self._held[key] = (length + _ENTRY, made)
                self._size += length + _ENTRY
            while self._size > self._capacity and self._held:
                self._size -= self._held.popitem(last=False)[1][0]
        return made
