"""The memory that bodies take, from when they are read until they are taken in."""

from __future__ import annotations

import asyncio
from functools import partial
from types import TracebackType

from millstream.collect.capacity.wait_queue import Line, Overloaded

_SMALL = 64 << 10  # bytes of a body that are in memory before anybody can decide to read it
_LOOK_SECONDS, _QUICK = 0.25, 16 << 10  # bytes that come meanwhile of a body that counts as a whole


class Bodies:
    """Bounds what is held of all bodies together. Where there is no room, a body is not read."""

    def __init__(self, most: int, largest: int, line: Line) -> None:
        self.held = 0  # bytes, with what quick senders have announced
        self._most = most
        self._largest = largest
        self._line = line

    async def expect(self, announced: int) -> Body:
        """Wait until a body of that size may be read; 0: nobody knows. Overloaded if it may not."""
        body = Body(self)
        if _SMALL < announced <= self._largest:
            await self.add(announced)
            body.announce(announced)
        return body

    def hold(self, size: int) -> Body:
        """A body that is there already; Overloaded if there is no room to keep it."""
        self._check(size)
        self.held += size
        return Body(self, size)

    async def add(self, size: int) -> None:
        """Count so many bytes more, as soon as there is room for them; else Overloaded."""
        if self._line.is_empty and self.held + size <= self._most:
            self.held += size
        else:
            await self._line.take(partial(self._add, size))

    def remove(self, size: int) -> None:
        """So many bytes are gone."""
        self.held -= size
        self._line.freed()

    async def _add(self, size: int) -> None:
        self._check(size)
        self.held += size

    def _check(self, size: int) -> None:
        if self.held + size > self._most:
            raise Overloaded(
                f"cannot take in more now: {self.held:,} bytes of bodies wait already",
                remedy="send less at once, or raise collect.max_body_memory",
            )


class Body:
    """What one body takes of the memory: all that it announces, as long as it comes quickly.

    Then it can be read to its end whatever else comes. Of one that takes its time only that counts
    which is there: few who announce much and send nothing would keep all others out.
    """

    def __init__(self, bodies: Bodies, arrived: int = 0) -> None:
        self._bodies = bodies
        self._counted = self._arrived = arrived
        self._seen = 0  # bytes, at the last look
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Body:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._bodies.remove(self._counted)

    def announce(self, size: int) -> None:
        """So many bytes are to come, and are counted."""
        self._counted = size
        self._look_later()

    async def grow(self, size: int) -> None:
        """A piece of it has come; Overloaded if there is no room for it."""
        self._arrived += size
        if (missing := self._arrived - self._counted) > 0:
            await self._bodies.add(missing)
            self._counted += missing

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        if self._arrived >= self._seen + _QUICK:
            self._seen = self._arrived
            self._look_later()
        elif self._counted > self._arrived:
            self._bodies.remove(self._counted - self._arrived)
            self._counted = self._arrived
