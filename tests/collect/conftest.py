"""Shared by the tests of collect: a running collector, and access to its log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from tests.collect.websocket_peer import Peer as Peer
from tests.wait_until import until as until

from millstream.collect.journal import JournalSettings
from millstream.collect.service import collecting
from millstream.collect.settings import CollectSettings
from millstream.connectors import SourceDescription
from millstream.log.consumer import bounds, read_range
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.log.topic_names import rejected_topic, stream_topic
from millstream.pipeline.app import App
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.runtime.home import Home
from millstream.runtime.listen import bind
from millstream.settings import Settings


@dataclass(frozen=True, slots=True)
class Collector:
    """A running collector, and the log that it writes to."""

    app: App
    log: LogSettings
    url: str
    http: httpx.AsyncClient

    async def post(self, stream: str, content: bytes | str, **more: Any) -> httpx.Response:
        """Send a body to a stream."""
        return await self.http.post(f"/v1/streams/{stream}", content=content, **more)

    async def logged(self, stream: str) -> list[Record]:
        """Everything in the stream's topic, in order."""
        return await asyncio.to_thread(read_topic, self.log, stream_topic(self.app.name, stream))

    async def rejected(self, stream: str) -> list[Record]:
        """Everything in the stream's rejected topic, in order."""
        return await asyncio.to_thread(read_topic, self.log, rejected_topic(self.app.name, stream))


def click(number: int, **more: object) -> bytes:
    """A valid event."""
    return json.dumps({"id": number, "at": "2026-11-16T12:00:00Z", **more}).encode()


def headers(record: Record) -> dict[str, str]:
    """A record's headers, as text."""
    return {name: value.decode() for name, value in record.headers}


def problem(response: httpx.Response, status: int) -> dict[str, object]:
    """The content of a problem+json answer with this status."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    content: dict[str, object] = response.json()
    assert content["status"] == status
    assert content["title"]
    return content


def read_topic(log: LogSettings, topic: str) -> list[Record]:
    """Everything in a topic of one partition."""
    first, end = bounds(log, topic)[0]
    return list(read_range(log, topic, 0, first, end)) if end > first else []


def shop(name: str, source: SourceDescription | None = None) -> App:
    """A pipeline to collect for."""
    app = App(name)
    app.stream(
        "clicks",
        schema="id LONG, name STRING, price DOUBLE, at TIMESTAMP",
        key="id",
        event_time="at",
        source=source,
    )
    app.stream("notes", schema="text STRING NOT NULL")
    app.stream("names", schema="text STRING", key="text")
    app.stream("ticks", schema="id LONG NOT NULL", delivery="at_most_once")
    app.stream("kept", schema="id LONG", key="id", on_invalid="keep")
    return app


@contextlib.asynccontextmanager
async def collect(
    app: App, log: LogSettings, home: Path, **settings: Any
) -> AsyncIterator[Collector]:
    """Run a collector for `app` inside the test."""
    journal = JournalSettings(**settings.pop("journal", {}))
    chosen = CollectSettings(port=0, **settings)
    await asyncio.to_thread(ensure_topics, app, log)
    async with (
        collecting(
            app,
            Settings(log=log, collect=chosen, journal=journal),
            Home(home),
            bind(chosen.host, chosen.port, tier="collect"),
        ) as url,
        httpx.AsyncClient(base_url=url, timeout=60.0) as http,
    ):
        yield Collector(app, log, url, http)


@pytest.fixture
async def collector(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> AsyncIterator[Collector]:
    async with collect(shop(app_name), log_settings, tmp_path) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(
    log_settings: LogSettings, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Collector]:
    """One collector for all tests of a module that are independent of other events."""
    app, home = shop(f"app{uuid.uuid4().hex[:10]}"), tmp_path_factory.mktemp("home")
    async with collect(app, log_settings, home, max_body=2_000_000) as running:
        yield running


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = Peer()
    await peer.start()
    yield peer
    await peer.stop()
