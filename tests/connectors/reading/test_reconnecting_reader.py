"""The base class of all readers."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from tests.collect.recording_output import RecordingOutput
from tests.wait_until import until

from millstream.collect.settings import CollectSettings
from millstream.connectors import WebSocketSource
from millstream.connectors.interface import ReaderOutput
from millstream.connectors.reading.reconnecting_reader import ReconnectingReader


class FaultyReader(ReconnectingReader[WebSocketSource]):
    """Has a bug: it fails at first."""

    attempts = 0

    async def read(self, output: ReaderOutput) -> None:
        self.attempts += 1
        if self.attempts == 1:
            raise ValueError("port out of range")
        self.connected()
        await asyncio.Event().wait()


async def test_a_bug_in_a_reader_is_logged_and_it_reconnects(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source, settings = WebSocketSource("ws://127.0.0.1:1/"), CollectSettings(reconnect_first=0.01)
    reader = FaultyReader("clicks", source, settings)
    reading = asyncio.create_task(reader.run(RecordingOutput()))
    await until(lambda: reading.done() or reader.state.state == "connected")
    assert not reading.done()
    assert reader.state.error == "Millstream failed to read it: ValueError"
    assert "port out of range" in caplog.text, "the log has the cause"
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reading
