"""What the conformance suite needs of each kind of source: the source, and a peer that misbehaves.

To add a source: subclass `Case` in `cases/<kind>.py`, and add it to `cases/__init__.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tests.collect.recording_output import RecordingOutput

from millstream.collect.settings import CollectSettings
from millstream.connectors import SourceDescription, create_reader
from millstream.connectors.interface import SourceReader

# On a busy machine everybody is slow: peers are taken for dead only where that is the point.
PATIENT = CollectSettings(
    reconnect_first=0.02, reconnect_most=0.05, ping_after=1.0, ping_timeout=30.0, max_body=100_000
)
HASTY = PATIENT.model_copy(update={"ping_after": 0.1, "ping_timeout": 0.5})


class Case(ABC):
    """A source and its peer. Events are objects with a number `n`, as `event` writes them.

    The peer is a real one. It is started before the reader, which must come up with it. What this
    kind of source cannot do, by its nature, it gives a reason for; the suite then proves what it
    does instead.
    """

    name: ClassVar[str]
    service: ClassVar[str] = ""  # the marker of the service that the peer is, if it is one
    up: ClassVar[str] = "connected"  # the state of a reader that is doing well
    why_no_reconnect: ClassVar[str] = ""  # the peer cannot drop it
    why_no_resume: ClassVar[str] = (
        ""  # it does not go on at a bookmark: what came meanwhile is gone
    )
    why_no_stall: ClassVar[str] = ""  # it cannot tell a peer that hangs from one that is quiet
    why_no_hold: ClassVar[str] = (
        ""  # a flooding peer is not held back: what it pours waits elsewhere
    )
    why_loss: ClassVar[str] = ""  # it promises nothing of a flood, but to count what it lost
    behind_unit: ClassVar[str] = ""  # in which the peer tells how much it has for us, if it does
    flood: ClassVar[int] = 16_000  # more events of ~900 bytes than all buffers on the way hold
    most_bytes: ClassVar[int] = 8_000_000  # of them that a reader and its peer may hold meanwhile
    settings: ClassVar[CollectSettings] = PATIENT
    hasty_settings: ClassVar[CollectSettings] = HASTY

    def __init__(self, folder: Path, fixture: Callable[[str], Any]) -> None:
        """`folder` is empty and the test's own; `fixture` gives a pytest fixture by its name."""
        self.folder = folder
        self.fixture = fixture
        self.hasty = False  # whether the reader is to give a silent peer up soon
        self.poured = 0  # how many events of a flood the peer could send so far

    @property
    @abstractmethod
    def source(self) -> SourceDescription:
        """What a pipeline would write; once the peer has started."""

    @abstractmethod
    async def start(self) -> None:
        """Start the peer."""

    @abstractmethod
    async def stop(self) -> None:
        """End the peer and whatever it holds. The reader is gone by then."""

    @abstractmethod
    async def send(self, numbers: Sequence[int]) -> None:
        """Give these events to the reader, in order, as soon as there is one that takes them.

        If the source resumes, the peer keeps them for a reader that is not there. Returns when they
        are on their way; for a reader that does not read, it may take until it does.
        """

    @abstractmethod
    async def pour(self, total: int) -> None:
        """Send events 0 to total - 1, of ~900 bytes, as fast as they go; count them in `poured`."""

    async def drop(self) -> None:
        """Lose the connection, at once and without a word; come back when the reader does."""
        assert self.why_no_reconnect

    @abstractmethod
    async def garbage(self) -> None:
        """Send what makes no sense, as much as the protocol allows."""

    async def stall(self) -> None:
        """Go silent on the connection that is there, as a dead machine would; serve the next."""
        assert self.why_no_stall

    async def noticed(self, reader: SourceReader) -> bool:
        """Whether the reader has given the silent connection up."""
        return reader.state.reconnects >= 1

    def reader(self) -> SourceReader:
        """A new reader of the source."""
        settings = self.hasty_settings if self.hasty else self.settings
        return create_reader("events", self.source, settings)

    @property
    def silence(self) -> str:
        """How long a peer may say nothing."""
        return "500 ms" if self.hasty else "1 minute"

    def numbers(self, output: RecordingOutput) -> list[int]:
        """The numbers of the events that came in, in order; garbage is left out."""
        return [number for message in output.messages for number in numbers_in(message)]


def event(number: int, padding: int = 0) -> bytes:
    """An event's bytes."""
    return json.dumps({"n": number, "pad": "x" * padding}).encode()


def numbers_in(message: bytes) -> list[int]:
    """The numbers of a message's events: it is one event, or one a line."""
    found = []
    for line in message.split(b"\n"):
        with contextlib.suppress(ValueError, TypeError, KeyError):
            found.append(int(json.loads(line)["n"]))
    return found


@contextlib.asynccontextmanager
async def running(reader: SourceReader, output: RecordingOutput) -> AsyncIterator[None]:
    """The reader, reading; on leaving, it is stopped."""
    task = asyncio.create_task(reader.run(output))
    try:
        yield
    finally:
        await stop(task)


async def stop(task: asyncio.Task[None]) -> None:
    """Cancel a reader, and wait until it has ended; what it raised by itself is raised here."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
