"""What all readers share: they connect, read, lose the peer, and come back."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar

from millstream.connectors.interface import ReaderOutput
from millstream.connectors.reading.batcher import Parcel
from millstream.connectors.settings import SourceSettings
from millstream.connectors.source_description import Source
from millstream.errors import MillstreamError
from millstream.runtime.measure import Rate
from millstream.values.report import SourceState

_log = logging.getLogger(__name__)

_QUIET_SECONDS = 10.0

S = TypeVar("S", bound=Source)


class Lost(Exception):
    """The peer is gone or makes no sense; the text says how."""


class ReconnectingReader(ABC, Generic[S]):
    """Keeps a source connected. Subclasses read; OSError and Lost mean: connect again."""

    def __init__(self, stream: str, source: S, settings: SourceSettings) -> None:
        self.stream = stream
        self.source = source
        self.settings = settings
        self.behind: int | None = None  # how much the peer still has for us, where it says so
        self.behind_unit = ""
        self.least_pause = 0.0  # seconds that the peer asks us to stay away, after it is lost
        self._rate = Rate()
        self._state = SourceState(stream, source.kind, source.address, "connecting")
        self._connections = 0
        self._failures = 0  # since the last message
        self._quiet_until = 0.0

    @property
    def state(self) -> SourceState:
        """How it is doing."""
        self._state.rate = self._rate.per_second()
        self._state.behind, self._state.behind_unit = self.behind, self.behind_unit
        return self._state

    @abstractmethod
    async def read(self, output: ReaderOutput) -> None:
        """Connect, call `connected`, and offer messages, calling `received` after each.

        Returning means that the peer has ended the stream. OSError, TimeoutError and Lost are
        failures of the peer; whatever else is raised is a bug, and is logged as one.
        """

    def connected(self) -> None:
        """The peer has answered."""
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
        """The port is ours: peers may come."""
        self.connected()
        self._state.state = "listening"

    def received(self, messages: int = 1) -> None:
        """Messages were handed over."""
        self._state.received += messages
        self._rate.add(messages)
        self._failures = 0
        self._state.error = ""

    async def hand_over(self, output: ReaderOutput, parcels: Iterable[Parcel]) -> None:
        """Offer all of it, in order, and count it."""
        for parcel in parcels:
            await output.offer(
                parcel.body,
                content_type=parcel.content_type,
                attributes=parcel.attributes,
                bookmark=parcel.bookmark,
            )
            self.received(parcel.messages)

    def missed(self, messages: int, why: str) -> None:
        """Messages will never get in; the text says why."""
        self._state.lost += messages
        self.complain(f"{self._state.lost} messages did not get in so far; the last: {why}")

    def warn(self, text: str) -> None:
        """Say in the log, and in `status` from now on, that something was lost uncounted."""
        self._state.warning = text
        _log.warning("%s for stream %s: %s", self._state.url, self.stream, text)

    def complain(self, text: str) -> None:
        """Tell the log what goes wrong without an end to it; at most every ten seconds."""
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
                except (OSError, Lost) as error:
                    self._state.error = str(error) or type(error).__name__
                except MillstreamError:
                    raise
                except Exception as error:
                    # A fault of ours must not end the collector, which all other streams need.
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
        # Full jitter: many collectors that lost the same peer do not come back all at once.
        doubled = self.settings.reconnect_first * 2 ** min(self._failures - 1, 30)
        most = self.settings.reconnect_most
        return max(random.uniform(0, min(doubled, most)), min(self.least_pause, most))
