"""Interfaces between the collector and the readers of sources."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from millstream.values.report import SourceState


class ReaderOutput(Protocol):
    """Where a reader hands over the messages that it reads; the collector implements it."""

    @property
    def bookmark(self) -> bytes | None:
        """The newest bookmark that is on disk: where to go on after a restart."""

    async def offer(
        self,
        message: bytes,
        *,
        content_type: str = "application/json",
        attributes: Mapping[str, str] | None = None,
        bookmark: bytes | None = None,
    ) -> asyncio.Future[None]:
        """Take over a message: an event, an array or lines of them, as its content type says.

        Waits while there is no room, so a reader that awaits it before it reads on hands the
        pressure back to its peer. The future is done when the message and its bookmark are on disk,
        which is the moment to acknowledge it to a peer that wants that. It never fails: what cannot
        be stored now is stored later, in order. Raises nothing for what is in a message; events
        that don't fit the schema go to the stream's rejected topic.

        `attributes` are CloudEvents attributes (id, source, type, time, subject) of a message that
        is one event. `bookmark` is the reader's own note of where it is after this message.
        """


class Reader(Protocol):
    """Something that the collector reads events from; made by (stream, source, settings)."""

    @property
    def state(self) -> SourceState:
        """How it is doing; cheap, asked every second."""

    async def run(self, output: ReaderOutput) -> None:
        """Read until cancelled, reconnecting for ever. May not block; raises only for a bug."""
