"""Those who wait for room: what cannot be taken in now is not refused at once.

A sender that is refused sends its body again. To read that takes from the loop the time in which
Kafka would get what is here already, so that there would be less room, not more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from millstream.errors import JournalBroken, JournalFull, LogError


class Overloaded(LogError):
    """Too much is under way to take in more."""


NO_ROOM = (Overloaded, JournalFull, JournalBroken)  # now; there can be some in a moment

_Taken = TypeVar("_Taken")


class Line:
    """First come, first served, and nobody waits longer than so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting: set[asyncio.Timeout] = set()
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        """Whether nobody waits: who comes now may try at once."""
        return not self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def freed(self) -> None:
        """There can be room now."""
        self._freed.set()

    async def take(self, attempt: Callable[[], Awaitable[_Taken]]) -> _Taken:
        """What an attempt gives, as soon as there is room; its error if there is none in time.

        An attempt that finds none (NO_ROOM) must have taken nothing: it is made again.
        """
        if self.is_empty:
            try:
                return await attempt()
            except NO_ROOM:
                pass
        return await self.wait(attempt)

    async def wait(self, attempt: Callable[[], Awaitable[_Taken]]) -> _Taken:
        """As `take`, behind all others."""
        try:
            async with asyncio.timeout(self._seconds) as limit:
                self._waiting.add(limit)
                try:
                    async with self._turn:
                        return await self._take_first(attempt)
                finally:
                    self._waiting.discard(limit)
        except TimeoutError:
            return await attempt()  # its error says how it is now

    def let_all_go(self) -> None:
        """Let nobody wait any longer."""
        for limit in self._waiting:
            limit.reschedule(0.0)

    async def _take_first(self, attempt: Callable[[], Awaitable[_Taken]]) -> _Taken:
        while True:
            self._freed.clear()
            try:
                return await attempt()
            except NO_ROOM:
                await self._freed.wait()
