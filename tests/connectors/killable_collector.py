"""A collector of one source, in a process that tests kill, and the contents of its log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.collect.conftest import read_topic

from millstream.collect.service import run
from millstream.connectors import source_from_text
from millstream.log.consumer import bounds, read_range
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.log.topic_names import stream_topic
from millstream.pipeline.app import App
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.runtime.home import Home
from millstream.settings import Settings

_STARTING = multiprocessing.get_context("forkserver")
_STARTING.set_forkserver_preload(["millstream.collect.service"])

Source = dict[str, str]  # as SQL writes it


def pipeline(name: str, source: Source, schema: str) -> App:
    """An app with one stream that has a source."""
    app = App(name)
    app.stream("events", schema=schema, source=source_from_text(dict(source)))
    return app


def collect(name: str, source: Source, schema: str, home: str, settings: str) -> None:
    """The main function of the process."""
    app = pipeline(name, source, schema)
    run(app, Settings.model_validate_json(settings), Home(Path(home)))


@dataclass
class Collector:
    """Can be killed and restarted in the same home."""

    name: str
    log: LogSettings
    home: Path
    source: Source
    schema: str = "n LONG NOT NULL"
    process: BaseProcess | None = field(default=None)

    def start(self) -> None:
        """Start it; returns at once."""
        settings = {
            "log": {"bootstrap": self.log.bootstrap},
            "collect": {"port": 0, "reconnect_first": 0.05, "reconnect_most": 0.2},
        }
        self.process = _STARTING.Process(
            target=collect,
            args=(self.name, self.source, self.schema, str(self.home), json.dumps(settings)),
        )
        self.process.start()

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        if self.process is not None and self.process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
            self.process.join(30)
            self.process.close()
            self.process = None

    async def killed_at(self, *counts: int) -> None:
        """For each count: wait for so many more events in the log, kill it, and restart it."""
        for count in counts:
            await self.has(self.count() + count)
            await asyncio.to_thread(self.kill)
            self.start()

    async def has(self, count: int) -> None:
        """Wait until there are so many events in the log."""
        await self.until(lambda: self.count() >= count)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that asks Kafka."""
        deadline = time.monotonic() + 90
        while not await asyncio.to_thread(condition):
            assert time.monotonic() < deadline, "it did not come true in time"
            await asyncio.sleep(0.02)

    def count(self) -> int:
        """How many events are in the log."""
        first, end = bounds(self.log, self._topic)[0]
        return end - first

    def newest(self) -> dict[str, Any]:
        """The newest event in the log."""
        first, end = bounds(self.log, self._topic)[0]
        found = read_range(self.log, self._topic, 0, end - 1, end) if end > first else []
        newest: dict[str, Any] = {}
        for record in found:
            newest = json.loads(record.value or b"")
        return newest

    def logged(self) -> list[Record]:
        """The records in the log, in order."""
        return read_topic(self.log, self._topic)

    def numbers(self) -> list[int]:
        """The numbers of the events in the log, in order."""
        return [json.loads(record.value or b"")["n"] for record in self.logged()]

    @property
    def _topic(self) -> str:
        return stream_topic(self.name, "events")


@contextlib.asynccontextmanager
async def killable(
    name: str, log: LogSettings, home: Path, source: Source, **more: Any
) -> AsyncIterator[Collector]:
    """A running collector; it is killed at the end."""
    collector = Collector(name, log, home, source, **more)
    app = pipeline(name, source, collector.schema)
    await asyncio.to_thread(ensure_topics, app, log)
    collector.start()
    try:
        yield collector
    finally:
        await asyncio.to_thread(collector.kill)


async def at_rest(measure: Callable[[], int], seconds: float = 0.5) -> None:
    """Wait until a number has not changed for a while."""
    while True:
        before = measure()
        await asyncio.sleep(seconds)
        if measure() == before:
            return
