"""Splits the bytes of a connection into messages, with backpressure."""

from __future__ import annotations

import asyncio
import struct
import time
from typing import cast

from millstream.connectors.reading.reconnecting_reader import ConnectionLost

_HIGH_WATER = 512 * 1024  # buffered bytes at which reading from the peer pauses
LARGEST = 0x3FFFFFFF  # PostgreSQL's own limit for a value
_CLOSE_SECONDS = 0.3
_LARGEST_BEFORE_LOGIN = 64 * 1024  # an unauthenticated peer gets little memory

_LENGTH = struct.Struct("!i")


class MessageTransport(asyncio.Protocol):
    """The messages of one connection, in order."""

    def __init__(self) -> None:
        self.largest = _LARGEST_BEFORE_LOGIN
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._start = 0  # of the unread bytes
        self._paused = False
        self._ended: BaseException | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._gone = asyncio.Event()
        self._since = 0.0  # when the current wait started

    @property
    def ready(self) -> bool:
        """Whether a complete message is buffered."""
        length = self._length()
        return length > 0 and len(self._buffer) - self._start > length

    @property
    def waiting_bytes(self) -> int:
        """The number of buffered bytes."""
        return len(self._buffer) - self._start

    @property
    def silent(self) -> float:
        """Seconds that we have waited for the peer; 0 while we do not read."""
        waiting = self._waiting is not None and not self._waiting.done()
        return time.monotonic() - self._since if waiting else 0.0

    async def message(self) -> tuple[int, bytes]:
        """The next message: its type byte and its payload."""
        while not self.ready:
            await self._more()
        begin = self._start + 5
        self._start = end = self._start + 1 + self._length()
        kind, payload = self._buffer[begin - 5], bytes(self._buffer[begin:end])
        self._release()
        return kind, payload

    async def byte(self) -> bytes:
        """One byte outside of any message: the answer to a TLS request."""
        while not self.waiting_bytes:
            await self._more()
        first = bytes(self._buffer[self._start : self._start + 1])
        self._start += 1
        return first

    def send(self, data: bytes) -> None:
        """Send without waiting; a failure shows up when reading."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def abort(self, reason: str) -> None:
        """Close at once; `message` then raises ConnectionLost with `reason`."""
        self._end(ConnectionLost(reason))
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Send Terminate and close, even if the peer does not answer."""
        if self._transport is None:
            return
        self.send(b"X\0\0\0\4")
        self._transport.close()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._gone.wait()
        except TimeoutError:
            self._transport.abort()
            await self._gone.wait()

    def _length(self) -> int:
        if len(self._buffer) - self._start < 5:
            return 0
        length: int = _LENGTH.unpack_from(self._buffer, self._start + 1)[0]
        if not 4 <= length <= self.largest:
            raise ConnectionLost("what it sends is not PostgreSQL's protocol")
        return length

    async def _more(self) -> None:
        if self._ended is not None:
            raise self._ended
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        self._since = time.monotonic()
        self._waiting = asyncio.get_running_loop().create_future()
        await self._waiting

    def _release(self) -> None:
        if self._start == len(self._buffer):
            self._buffer.clear()
            self._start = 0
        elif self._start > _HIGH_WATER:
            del self._buffer[: self._start]
            self._start = 0
        if self._paused and self.waiting_bytes < _HIGH_WATER // 2 and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def _end(self, reason: BaseException) -> None:
        self._ended = self._ended or reason
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because uvloop's transports have another class.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self.waiting_bytes > _HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._gone.set()
        self._end(ConnectionLost(str(error) if error else "the server closed the connection"))
