"""The base class of all readers: connects, reads, and reconnects when the peer is lost."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar

from millstream.connectors.interface import ReaderOutput
from millstream.connectors.reading.batcher import MessageBatch
from millstream.connectors.settings import SourceSettings
from millstream.connectors.source_description import SourceDescription
from millstream.errors import MillstreamError
from millstream.runtime.measure import Rate
from millstream.values.report import SourceState

_log = logging.getLogger(__name__)

_QUIET_SECONDS = 10.0

S = TypeVar("S", bound=SourceDescription)


class ConnectionLost(Exception):
    """The peer is gone or breaks the protocol; the text says how."""


class ReconnectingReader(ABC, Generic[S]):
    """Keeps a source connected. A subclass reads; OSError or ConnectionLost means: reconnect."""

    def __init__(self, stream: str, source: S, settings: SourceSettings) -> None:
        self.stream = stream
        self.source = source
        self.settings = settings
        self.behind: int | None = None  # how much is still to be read, if the peer reports it
        self.behind_unit = ""
        self.least_pause = 0.0  # seconds; the pause before reconnecting that the peer requests
        self._rate = Rate()
        self._state = SourceState(stream, source.kind, source.address, "connecting")
        self._connections = 0
        self._failures = 0  # since the last message
        self._quiet_until = 0.0

    @property
    def state(self) -> SourceState:
        """The current state."""
        self._state.rate = self._rate.per_second()
        self._state.behind, self._state.behind_unit = self.behind, self.behind_unit
        return self._state

    @abstractmethod
    async def read(self, output: ReaderOutput) -> None:
        """Connect, call `connected`, and offer messages, calling `received` after each.

        It returns when the peer has ended the stream. OSError, TimeoutError and ConnectionLost are
        failures of the peer. Any other exception is a bug, and is logged as one.
        """

    def connected(self) -> None:
        """Note that the peer has answered."""
        self._connections += 1
        if self._failures:
            _log.info(
                "%s for stream %s answers again",
                self._state.url,
                self.stream,
                extra={"stream": self.stream, "source": self._state.kind},
            )
        self._state.state = "connected"
        self._state.reconnects = self._connections - 1

    def listening(self) -> None:
        """Note that the port is open for peers."""
        self.connected()
        self._state.state = "listening"

    def received(self, messages: int = 1) -> None:
        """Count messages that were handed over."""
        self._state.received += messages
        self._rate.add(messages)
        self._failures = 0
        self._state.error = ""

    async def hand_over(self, output: ReaderOutput, batches: Iterable[MessageBatch]) -> None:
        """Offer the batches in order, and count their messages."""
        for batch in batches:
            await output.offer(
                batch.body,
                content_type=batch.content_type,
                attributes=batch.attributes,
                bookmark=batch.bookmark,
            )
            self.received(batch.messages)

    def missed(self, messages: int, why: str) -> None:
        """Count messages that are lost for good; the text says why."""
        self._state.lost += messages
        self.log_rarely(f"{self._state.lost} messages did not get in so far; the last: {why}")

    def warn(self, text: str) -> None:
        """Log, and show in `status` from now on, that an unknown number of messages was lost."""
        self._state.warning = text
        _log.warning("%s for stream %s: %s", self._state.url, self.stream, text)

    def log_rarely(self, text: str) -> None:
        """Log a problem that may repeat without end; at most every ten seconds."""
        now = time.monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + _QUIET_SECONDS
            _log.warning("%s for stream %s: %s", self._state.url, self.stream, text)

    async def run(self, output: ReaderOutput) -> None:
        """Read until cancelled."""
        try:
            while True:
                self._state.state = "retrying" if self._failures else "connecting"
                try:
                    await self.read(output)
                    self._state.error = "the peer closed the connection"
                except TimeoutError as error:
                    self._state.error = str(error) or "no answer in time"
                except (OSError, ConnectionLost) as error:
                    self._state.error = str(error) or type(error).__name__
                except MillstreamError:
                    raise
                except Exception as error:
                    # A bug in one reader must not end the collector: other streams need it.
                    self._state.error = f"Millstream failed to read it: {type(error).__name__}"
                    _log.exception("cannot read %s", self._state.url)
                self._state.state = "retrying"
                self._failures += 1
                pause = self._pause()
                _log.warning(
                    "lost %s for stream %s: %s; trying again in %.1f s",
                    self._state.url,
                    self.stream,
                    self._state.error,
                    pause,
                    extra={"stream": self.stream, "source": self._state.kind},
                )
                await asyncio.sleep(pause)
        finally:
            self._state.state = "stopped"

    def _pause(self) -> float:
        # Full jitter: collectors that lost the same peer do not reconnect all at once.
        doubled = self.settings.reconnect_first * 2 ** min(self._failures - 1, 30)
        most = self.settings.reconnect_most
        return max(random.uniform(0, min(doubled, most)), min(self.least_pause, most))
