"""What a source must do, and what it is given: the boundary of `collect/sources/`."""

from __future__ import annotations

from typing import Protocol

from millstream.audit import SourceState


class Inlet(Protocol):
    """A stream's way into the log, for a source that has no sender to answer."""

    async def offer(self, message: bytes) -> int:
        """Take over a message's events; the number of them.

        Waits while too much is pending at Kafka, so a source that awaits it before it reads on
        hands the pressure back to its peer. When it returns, the events are handed over, not yet in
        the log: what Kafka does not confirm is sent again until it does (at least once). Events
        that don't fit the stream's schema go to its rejected topic. Raises nothing for what is in a
        message.
        """


class Source(Protocol):
    """Something that the collector reads events from."""

    @property
    def state(self) -> SourceState:
        """How it is doing; cheap, asked every second."""

    async def run(self, inlet: Inlet) -> None:
        """Read until cancelled, reconnecting for ever. May not block; raises only for a bug."""
