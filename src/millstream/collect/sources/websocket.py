"""Reads a stream from a WebSocket that someone else serves."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import Literal

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from millstream.audit import SourceState
from millstream.collect.interface import Inlet
from millstream.collect.settings import CollectSettings
from millstream.source import WebSocketSource

_OPEN_SECONDS = 10.0
_CLOSE_SECONDS = 1.0

_logger = logging.getLogger(__name__)


class WebSocketReader:
    """Keeps one connection open, and offers each of its messages to the stream."""

    def __init__(self, stream: str, source: WebSocketSource, settings: CollectSettings) -> None:
        self.url = source.address
        self._stream = stream
        self._source = source
        self._settings = settings
        self._state: Literal["connecting", "connected", "retrying", "stopped"] = "connecting"
        self._error = ""
        self._received = 0
        self._connections = 0
        self._failures = 0  # since the last message
        self._heard = 0.0
        self._reading = False  # False while the log holds us up: silence is then our own doing

    @property
    def state(self) -> SourceState:
        """How it is doing."""
        return SourceState(
            stream=self._stream,
            kind="websocket",
            url=self.url,
            state=self._state,
            received=self._received,
            reconnects=max(0, self._connections - 1),
            error=self._error,
        )

    async def run(self, inlet: Inlet) -> None:
        """Read until cancelled."""
        try:
            while True:
                self._state = "retrying" if self._failures else "connecting"
                try:
                    await self._connect_and_read(inlet)
                    self._error = "the peer closed the connection"
                except (OSError, WebSocketException, TimeoutError) as error:
                    self._error = str(error) or type(error).__name__
                self._state = "retrying"
                self._failures += 1
                pause = self._pause()
                _logger.warning(
                    "lost %s for stream %s: %s; trying again in %.1f s",
                    self.url,
                    self._stream,
                    self._error,
                    pause,
                )
                await asyncio.sleep(pause)
        finally:
            self._state = "stopped"

    def _pause(self) -> float:
        # Full jitter: many collectors that lost the same peer do not come back all at once.
        doubled = self._settings.reconnect_first * 2 ** min(self._failures - 1, 30)
        return random.uniform(0, min(doubled, self._settings.reconnect_most))

    async def _connect_and_read(self, inlet: Inlet) -> None:
        async with connect(
            self._source.url,
            additional_headers=self._source.headers,
            open_timeout=_OPEN_SECONDS,
            close_timeout=_CLOSE_SECONDS,
            max_size=self._settings.max_body,
            # The library's keepalive takes a peer for dead whose pong waits behind messages that we
            # are not reading; ours knows when we are the ones who are slow.
            ping_interval=None,
        ) as connection:
            self._connections += 1
            self._state = "connected"
            self._heard = time.monotonic()
            watch = asyncio.create_task(self._watch(connection))
            try:
                await self._read(connection, inlet)
            finally:
                watch.cancel()

    async def _read(self, connection: ClientConnection, inlet: Inlet) -> None:
        while True:
            self._reading = True
            message = await connection.recv(decode=False)
            self._reading = False
            self._received += await inlet.offer(message)
            self._heard = time.monotonic()
            self._failures = 0
            self._error = ""

    async def _watch(self, connection: ClientConnection) -> None:
        while True:
            silent = time.monotonic() - self._heard if self._reading else 0.0
            if silent < self._settings.ping_after:
                await asyncio.sleep(self._settings.ping_after - silent)
                continue
            asked = time.monotonic()
            try:
                pong = asyncio.ensure_future(await connection.ping())
                await asyncio.wait([pong], timeout=self._settings.ping_timeout)
                answered = pong.done() and pong.result() is not None
            except ConnectionClosed:  # the reading ends of it too
                return
            if answered:
                self._heard = time.monotonic()
            elif self._reading and self._heard < asked:
                # Nor did a message come, behind which the pong could be waiting. No closing
                # handshake with a peer that does not answer.
                connection.transport.abort()
                return
