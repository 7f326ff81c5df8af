"""Queues for requests that wait for capacity.

A request that finds no room waits a moment before it is refused. A refused sender sends its body
again, and reading that body takes loop time away from sending to Kafka: less room, not more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from millstream.errors import JournalBroken, JournalFull, LogError


class Overloaded(LogError):
    """Too much is in progress to accept more."""


NO_ROOM = (Overloaded, JournalFull, JournalBroken)  # may pass in a moment

_Result = TypeVar("_Result")


class WaitQueue:
    """FIFO queue of requests that wait for capacity, each for at most `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting: set[asyncio.Timeout] = set()
        self._turn = asyncio.Lock()
        self._room = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        """Whether no request waits: a new one may try at once."""
        return not self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def notify(self) -> None:
        """Let the first request try again: there may be room now."""
        self._room.set()

    async def run(self, attempt: Callable[[], Awaitable[_Result]]) -> _Result:
        """The result of `attempt`, as soon as there is room; its last error after the time limit.

        An attempt that raises one of NO_ROOM must have changed nothing: it is made again.
        """
        if self.is_empty:
            try:
                return await attempt()
            except NO_ROOM:
                pass
        return await self.run_queued(attempt)

    async def run_queued(self, attempt: Callable[[], Awaitable[_Result]]) -> _Result:
        """As `run`, but the first attempt is made behind all requests that wait."""
        try:
            async with asyncio.timeout(self._seconds) as limit:
                self._waiting.add(limit)
                try:
                    async with self._turn:
                        return await self._run_first(attempt)
                finally:
                    self._waiting.discard(limit)
        except TimeoutError:
            return await attempt()  # its error describes the state of now

    def release_all(self) -> None:
        """End every wait: each request makes its last attempt."""
        for limit in self._waiting:
            limit.reschedule(0.0)

    async def _run_first(self, attempt: Callable[[], Awaitable[_Result]]) -> _Result:
        while True:
            self._room.clear()
            try:
                return await attempt()
            except NO_ROOM:
                await self._room.wait()


class WaitQueues:
    """The queues of one collector, by what requests wait for."""

    def __init__(self, seconds: float) -> None:
        self.kafka = WaitQueue(seconds)  # room in the window to Kafka, for what skips the journal
        self.journal = WaitQueue(seconds)
        self.memory = WaitQueue(seconds)  # room for a body, before it is read

    def __len__(self) -> int:
        return len(self.kafka) + len(self.journal) + len(self.memory)

    def release_all(self) -> None:
        """End every wait: the collector stops."""
        for queue in (self.kafka, self.journal, self.memory):
            queue.release_all()
