"""What one client is sent next: messages that are ready, and work that makes more of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable


class Outbox:
    """Messages that are ready for a client, and at most one task that makes more.

    The task waits until its messages were taken, so that few of them exist at a time. `wake` is
    called when messages can be taken.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._ready: deque[tuple[bytes, bool]] = deque()
        self._emptied = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def is_working(self) -> bool:
        return self._task is not None

    def push(self, message: bytes, *, is_change: bool = False) -> None:
        self._ready.append((message, is_change))

    def take(self, size: int, admits_change: Callable[[], bool]) -> list[bytes]:
        """About `size` bytes of messages; fewer if no change is admitted now."""
        messages: list[bytes] = []
        while size > 0 and self._ready:
            message, is_change = self._ready[0]
            if is_change and not admits_change():
                break
            self._ready.popleft()
            messages.append(message)
            size -= len(message)
        if not self._ready:
            self._emptied.set()
        return messages

    async def wait_until_taken(self) -> None:
        self._emptied.clear()
        self._wake()
        await self._emptied.wait()

    def start(self, work: Callable[[], Awaitable[None]]) -> None:
        """Let `work` make messages; nothing else is sent until it ends."""

        async def run() -> None:
            try:
                await work()
            finally:
                if self._task is asyncio.current_task():
                    self._task = None
            self._wake()

        self._task = asyncio.get_running_loop().create_task(run())

    def clear(self) -> None:
        """Drop the messages and the work."""
        self._ready.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None


class Turns:
    """Wakes a client again that stopped early: at once, or when a rate allows more."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None
        self.is_next = False  # the client is woken after the others had their turn

    def again(self) -> None:
        self.is_next = True
        asyncio.get_running_loop().call_later(0, self._begin)

    def after(self, seconds: float) -> None:
        """Wake the client after that time, or sooner."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + seconds:
                return
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._ring)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        self.is_next = False
        self._wake()

    def _ring(self) -> None:
        self._timer = None
        self._wake()
