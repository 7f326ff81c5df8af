"""Interfaces between the collector and the readers of sources."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from millstream.values.report import SourceState


class ReaderOutput(Protocol):
    """Receives the messages of one reader; the collector implements it."""

    @property
    def bookmark(self) -> bytes | None:
        """The newest bookmark on disk; a reader resumes there after a restart."""

    async def offer(
        self,
        message: bytes,
        *,
        content_type: str = "application/json",
        attributes: Mapping[str, str] | None = None,
        bookmark: bytes | None = None,
    ) -> asyncio.Future[None]:
        """Accept a message: one event, an array or lines of events, as its content type says.

        Waits while the journal is full. A reader that awaits it before it reads on passes this
        backpressure to its peer. The returned future is done when the message and its bookmark are
        on disk: a reader then acknowledges the message to its peer. The future never fails: the
        collector retries a failed write, in order. An invalid event raises nothing; it goes to the
        stream's rejected topic.

        `attributes` are the CloudEvents attributes (id, source, type, time, subject) of a message
        that is one event. `bookmark` is the reader's own note of its position after this message.
        """


class SourceReader(Protocol):
    """Reads one source for one stream; `create_reader` makes it.

    Delivery guarantee: a reader that uses bookmarks delivers each message once, because the
    bookmark is stored together with the message. One that acknowledges messages to its peer
    delivers them at least once. Any other loses what is sent while it is disconnected.
    """

    @property
    def state(self) -> SourceState:
        """The current state. Called every second: it must be cheap and must not block."""

    async def run(self, output: ReaderOutput) -> None:
        """Read until cancelled, and reconnect after every failure of the peer.

        It must not block the event loop. It raises only for a bug or a MillstreamError.
        """
