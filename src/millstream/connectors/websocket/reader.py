"""Reader of a WebSocket."""

from __future__ import annotations

import asyncio
import time

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from millstream.connectors.interface import ReaderOutput
from millstream.connectors.reading.reconnecting_reader import ConnectionLost, ReconnectingReader
from millstream.connectors.settings import SourceSettings
from millstream.connectors.websocket.description import WebSocketSource

_OPEN_SECONDS = 10.0
_CLOSE_SECONDS = 1.0


class WebSocketReader(ReconnectingReader[WebSocketSource]):
    """Keeps one connection open, and offers each of its messages to the stream."""

    def __init__(self, stream: str, source: WebSocketSource, settings: SourceSettings) -> None:
        super().__init__(stream, source, settings)
        self._last_heard = 0.0
        self._reading = (
            False  # False while we wait for the output: silence is then not the peer's fault
        )

    async def read(self, output: ReaderOutput) -> None:
        """Read until the connection ends."""
        try:
            await self._connect_and_read(output)
        except WebSocketException as error:
            raise ConnectionLost(str(error) or type(error).__name__) from None

    async def _connect_and_read(self, output: ReaderOutput) -> None:
        async with await self._connect() as connection:
            self.connected()
            self._last_heard = time.monotonic()
            watch = asyncio.create_task(self._watch(connection))
            try:
                while True:
                    self._reading = True
                    message = await connection.recv(decode=False)
                    self._reading = False
                    await output.offer(message)
                    self._last_heard = time.monotonic()
                    self.received()
            finally:
                watch.cancel()

    async def _connect(self) -> ClientConnection:
        try:
            return await connect(
                self.source.url,
                additional_headers=self.source.headers,
                open_timeout=_OPEN_SECONDS,
                close_timeout=_CLOSE_SECONDS,
                max_size=self.settings.max_body,
                # The library's keepalive drops a peer whose pong waits behind messages that we do
                # not read. `_watch` knows when we are the slow ones.
                ping_interval=None,
            )
        except ValueError as error:  # the peer redirects to an invalid address
            raise ConnectionLost(f"the address cannot be used: {error}") from None

    async def _watch(self, connection: ClientConnection) -> None:
        after, timeout = self.settings.ping_after, self.settings.ping_timeout
        while True:
            silent = time.monotonic() - self._last_heard if self._reading else 0.0
            if silent < after:
                await asyncio.sleep(after - silent)
                continue
            asked = time.monotonic()
            try:
                pong = asyncio.ensure_future(await connection.ping())
                await asyncio.wait([pong], timeout=timeout)
                answered = pong.done() and pong.result() is not None
            except ConnectionClosed:  # `read` ends for the same reason
                return
            if answered:
                self._last_heard = time.monotonic()
            elif self._reading and self._last_heard < asked:
                # No message arrived either, behind which the pong could wait. Abort: a peer that
                # does not answer will not answer a closing handshake.
                connection.transport.abort()
                return
