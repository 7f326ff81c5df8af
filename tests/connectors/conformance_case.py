"""The base class of conformance cases: a source, and a peer that misbehaves.

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

# Long timeouts, because the machine may be busy; short ones only for tests of timeouts.
PATIENT = CollectSettings(
    reconnect_first=0.02, reconnect_most=0.05, ping_after=1.0, ping_timeout=30.0, max_body=100_000
)
HASTY = PATIENT.model_copy(update={"ping_after": 0.1, "ping_timeout": 0.5})


class Case(ABC):
    """A source and its peer. Events are objects with a number `n`, as `event` writes them.

    The peer is a real one, and is started before the reader. A `why_no_…` attribute says why this
    kind of source cannot do something; the suite then tests what it does instead.
    """

    name: ClassVar[str]
    service: ClassVar[str] = ""  # the marker of the service that the peer is, if it is one
    up: ClassVar[str] = "connected"  # the state of a working reader
    why_no_reconnect: ClassVar[str] = ""  # the peer cannot drop it
    why_no_resume: ClassVar[str] = ""  # it has no bookmark: messages sent meanwhile are lost
    why_no_stall: ClassVar[str] = ""  # it cannot distinguish a hanging peer from a quiet one
    why_no_hold: ClassVar[str] = ""  # no backpressure to the peer: its messages wait elsewhere
    why_loss: ClassVar[str] = ""  # it may lose messages of a flood, but counts them
    behind_unit: ClassVar[str] = ""  # the unit of the lag, if the peer reports it
    flood: ClassVar[int] = 16_000  # more events of ~900 bytes than all buffers hold
    most_bytes: ClassVar[int] = 8_000_000  # that a reader and its peer may buffer meanwhile
    settings: ClassVar[CollectSettings] = PATIENT
    hasty_settings: ClassVar[CollectSettings] = HASTY

    def __init__(self, folder: Path, fixture: Callable[[str], Any]) -> None:
        """`folder` is empty and private to the test; `fixture` returns a pytest fixture by name."""
        self.folder = folder
        self.fixture = fixture
        self.hasty = False  # whether the reader uses short timeouts
        self.poured = 0  # how many events of a flood the peer has sent so far

    @property
    @abstractmethod
    def source(self) -> SourceDescription:
        """The source description; available once the peer has started."""

    @abstractmethod
    async def start(self) -> None:
        """Start the peer."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop the peer and free its resources. The reader has ended before."""

    @abstractmethod
    async def send(self, numbers: Sequence[int]) -> None:
        """Send these events to the reader, in order, as soon as one is connected.

        If the source can resume, the peer keeps them for a later reader. It returns when they are
        sent; with a reader that does not read, it may wait until it does.
        """

    @abstractmethod
    async def pour(self, total: int) -> None:
        """Send events 0 to total - 1, of ~900 bytes, as fast as possible; count them in poured."""

    async def drop(self) -> None:
        """Abort the connection; accept the next one."""
        assert self.why_no_reconnect

    @abstractmethod
    async def garbage(self) -> None:
        """Send garbage, as far as the protocol allows."""

    async def stall(self) -> None:
        """Go silent on the current connection, as a dead machine would; serve the next one."""
        assert self.why_no_stall

    async def noticed(self, reader: SourceReader) -> bool:
        """Whether the reader has dropped the silent connection."""
        return reader.state.reconnects >= 1

    def reader(self) -> SourceReader:
        """A new reader of the source."""
        settings = self.hasty_settings if self.hasty else self.settings
        return create_reader("events", self.source, settings)

    @property
    def silence(self) -> str:
        """How long a peer may be silent."""
        return "500 ms" if self.hasty else "1 minute"

    def numbers(self, output: RecordingOutput) -> list[int]:
        """The numbers of the received events, in order, without garbage."""
        return [number for message in output.messages for number in numbers_in(message)]


def event(number: int, padding: int = 0) -> bytes:
    """An event's bytes."""
    return json.dumps({"n": number, "pad": "x" * padding}).encode()


def numbers_in(message: bytes) -> list[int]:
    """The numbers of a message's events: it has one event, or one per line."""
    found = []
    for line in message.split(b"\n"):
        with contextlib.suppress(ValueError, TypeError, KeyError):
            found.append(int(json.loads(line)["n"]))
    return found


@contextlib.asynccontextmanager
async def running(reader: SourceReader, output: RecordingOutput) -> AsyncIterator[None]:
    """Run the reader during the block."""
    task = asyncio.create_task(reader.run(output))
    try:
        yield
    finally:
        await stop(task)


async def stop(task: asyncio.Task[None]) -> None:
    """Cancel a reader, and wait until it has ended; raises its own exception, if any."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
