"""A collector that the commands find in its home, and what it has put into the log."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from millstream import App
from millstream.collect.schemas import check_schemas
from millstream.collect.service import collecting
from millstream.collect.settings import CollectSettings
from millstream.log.consumer import bounds, read_range
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.log.topic_names import stream_topic
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.runtime.home import Home
from millstream.runtime.listen import bind
from millstream.settings import Settings


@contextlib.contextmanager
def collector(
    name: str,
    log: LogSettings,
    home: Path,
    schema: str,
    collect: CollectSettings | None = None,
    **stream: Any,
) -> Iterator[httpx.Client]:
    """A collector in a thread of its own, as the commands find it in its home."""
    app, place = App(name), Home(home)
    app.stream("orders", schema=schema, **stream)
    ensure_topics(app, log)
    check_schemas(app, log, accept=True)
    settings = Settings(log=log, collect=collect or CollectSettings(port=0))
    ready, url, loop = threading.Event(), "", asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        nonlocal url
        listener = bind("127.0.0.1", 0, tier="collect")
        async with collecting(app, settings, place, listener) as url:
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    try:
        assert ready.wait(60)
        place.announce("kafka", bootstrap=log.bootstrap)
        place.announce("collect", url=url)
        with httpx.Client(base_url=url, timeout=60) as http:
            yield http
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
        loop.close()
        place.withdraw()


def stored(log: LogSettings, app: str) -> list[Record]:
    topic = stream_topic(app, "orders")
    return [
        record
        for partition, (first, end) in bounds(log, topic).items()
        if first < end
        for record in read_range(log, topic, partition, first, end)
    ]


def bootstrap(log: LogSettings) -> str:
    return f"log.bootstrap={log.bootstrap}"
