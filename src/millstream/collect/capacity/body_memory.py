"""Bounds the memory of request bodies between reading and storing them."""

from __future__ import annotations

import asyncio
from functools import partial
from types import TracebackType

from millstream.collect.capacity.wait_queue import Overloaded, WaitQueue

_SMALL = 64 << 10  # bytes that are in memory before we can decide to read the body
_CHECK_SECONDS, _QUICK = 0.25, 16 << 10  # a quick sender sends so many bytes between checks


class BodyMemory:
    """The memory of all bodies together. A body that does not fit is not read yet."""

    def __init__(self, most: int, largest: int, queue: WaitQueue) -> None:
        self.held = 0  # bytes, including what quick senders have announced
        self._most = most
        self._largest = largest
        self._queue = queue

    async def reserve(self, announced: int) -> BodyReservation:
        """Wait for room for a body of that size (0: unknown); Overloaded if there is none in time.

        The body counts as long as the reservation is open.
        """
        body = BodyReservation(self)
        if _SMALL < announced <= self._largest:
            await self.add(announced)
            body.announce(announced)
        return body

    def hold(self, size: int) -> BodyReservation:
        """Reserve room for a body in memory; Overloaded if there is none."""
        self._check(size)
        self.held += size
        return BodyReservation(self, size)

    async def add(self, size: int) -> None:
        """Reserve more bytes, as soon as there is room; Overloaded if there is none in time."""
        if self._queue.is_empty and self.held + size <= self._most:
            self.held += size
        else:
            await self._queue.run(partial(self._add, size))

    def remove(self, size: int) -> None:
        """Give bytes back."""
        self.held -= size
        self._queue.notify()

    async def _add(self, size: int) -> None:
        self._check(size)
        self.held += size

    def _check(self, size: int) -> None:
        if self.held + size > self._most:
            raise Overloaded(
                f"cannot accept more now: {self.held:,} bytes of bodies wait already",
                remedy="send less at once, or raise collect.max_body_memory",
            )


class BodyReservation:
    """The memory reserved for one body.

    While the sender is quick, that is its announced size, so that the body can be read to its end.
    For a slow sender, only the bytes that arrived count: otherwise a few senders that announce much
    and send nothing would keep all others out.
    """

    def __init__(self, memory: BodyMemory, arrived: int = 0) -> None:
        self._memory = memory
        self._counted = self._arrived = arrived
        self._seen = 0  # of `_arrived`, at the last check
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> BodyReservation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._memory.remove(self._counted)

    def announce(self, size: int) -> None:
        """Count the announced size, which is reserved already."""
        self._counted = size
        self._check_later()

    async def grow(self, size: int) -> None:
        """Count bytes that arrived; Overloaded if there is no room for them."""
        self._arrived += size
        if (missing := self._arrived - self._counted) > 0:
            await self._memory.add(missing)
            self._counted += missing

    def _check_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_CHECK_SECONDS, self._check_speed)

    def _check_speed(self) -> None:
        if self._arrived >= self._seen + _QUICK:
            self._seen = self._arrived
            self._check_later()
        elif self._counted > self._arrived:
            self._memory.remove(self._counted - self._arrived)
            self._counted = self._arrived
