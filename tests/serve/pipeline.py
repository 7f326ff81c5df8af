"""A pipeline whose results the tests write, its servers, and clients of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
from confluent_kafka import Producer
from websockets.asyncio.client import ClientConnection, connect

from millstream import App
from millstream.log.settings import LogSettings
from millstream.log.topic_names import edition_topic, stream_topic, view_topic, views_topic
from millstream.pipeline.pipeline_topics import ensure_topics, recreate_topic
from millstream.serve.service import Server
from millstream.serve.settings import ServeSettings
from millstream.serve.transports.connection import Connection
from millstream.settings import Settings
from millstream.values.view_description import ViewColumn, ViewDescription

SECONDS = 60.0
Event = dict[str, Any]


def declare(name: str) -> App:
    """A table, one of windows with a ledger, a view without key, and the stream that they read."""
    app = App(name)
    app.stream("rsvps", schema="id LONG NOT NULL, city STRING, mtime TIMESTAMP", key="id")
    app.view("by_city", key=["city"], sql="SELECT city, count(*) AS n FROM rsvps GROUP BY 1")
    app.view(
        "per_minute",
        key=["window"],
        ledger=["n"],
        sql="SELECT window(mtime, '1 minute') AS window, count(*) AS n FROM rsvps GROUP BY 1",
    )
    app.view("newest", sql="SELECT id, city FROM rsvps")
    return app


class Pipeline:
    """by_city is a table, per_minute one of windows, newest has no key; rsvps is the stream."""

    def __init__(self, name: str, log: LogSettings, app: App | None = None) -> None:
        self.log = log
        self.app = app or declare(name)
        ensure_topics(self.app, log)
        self._producer = Producer({"bootstrap.servers": log.bootstrap, "linger.ms": 0})
        window = ViewColumn("window", "struct<start:timestamp,end:timestamp>")
        n, city = ViewColumn("n", "bigint"), ViewColumn("city", "string")
        self.describe("by_city", ["city"], [city, n])
        self.describe("per_minute", ["window"], [window, n], window="window", ledger=["n"])
        self.describe("newest", None, [ViewColumn("id", "bigint"), city])
        self.flush()

    def describe(
        self, view: str, key: list[str] | None, columns: list[ViewColumn], **more: Any
    ) -> None:
        description = ViewDescription(
            name=view,
            inputs=["rsvps"],
            key=key,
            columns=columns,
            mode="real_time",
            reason="a test",
            guarantee="exactly once",
            lineage="revision" if key else "position",
            **{"generation": "1", **more},
        )
        value = msgspec.json.encode(description)
        self._producer.produce(views_topic(self.app.name), value, view)

    def put(
        self,
        view: str,
        key: list[Any],
        row: dict[str, Any] | None,
        revision: int = 0,
        topic: str = "",
    ) -> None:
        """Write a result record; a row that is None is a tombstone."""
        value = None
        if row is not None:
            value = json.dumps({**row, "_revision": revision, "_received_at": _stamp()})
        topic = topic or view_topic(self.app.name, view)
        self._producer.produce(
            topic, value, json.dumps(key, separators=(",", ":"), ensure_ascii=False)
        )
        self._producer.poll(0)

    def count(self, city: str, n: int) -> None:
        """The city has its n-th event."""
        self.put("by_city", [city], {"city": city, "n": n}, n)

    def append(self, id_: int, city: str = "Berlin", offset: int | None = None) -> None:
        """A row of the view without key, from the source's record at `offset`."""
        place = {"source": "rsvps", "partition": 0, "offset": id_ if offset is None else offset}
        row = {"id": id_, "city": city, "_position": {**place, "row": 0}, "_received_at": _stamp()}
        self._producer.produce(view_topic(self.app.name, "newest"), json.dumps(row), "rsvps/0")

    def event(self, **fields: Any) -> None:
        self._producer.produce(
            stream_topic(self.app.name, "rsvps"), json.dumps(fields), str(fields["id"])
        )

    def write(self, topic: str, key: str, value: dict[str, Any]) -> None:
        """Write any record."""
        self._producer.produce(topic, json.dumps({**value, "_received_at": _stamp()}), key)

    def flush(self) -> None:
        assert self._producer.flush(10) == 0

    def recreate(self, view: str) -> str:
        return recreate_topic(self.app, self.log, view)

    def edition(self, view: str, number: int) -> str:
        """A topic beside the view's own, for the rebuilt view."""
        recreate_topic(self.app, self.log, view, number)
        return edition_topic(self.app.name, view, number)

    @contextlib.asynccontextmanager
    async def server(self, **serve: Any) -> AsyncIterator[Server]:
        """A server that has caught up."""
        settings = Settings(log=self.log, serve=ServeSettings(**{"port": 0, **serve}))
        async with Server(self.app, settings) as server:
            await asyncio.wait_for(server.wait_ready(), SECONDS)
            yield server


def _stamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())


def websocket_of(server: Server) -> Connection:
    """The server's side of a WebSocket; there is one at least."""
    return next(each for each in server.context.connections if isinstance(each, Connection))


class Socket:
    """A WebSocket client that awaits what it expects."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, **message: Any) -> None:
        await self.connection.send(json.dumps(message))

    async def next(self) -> dict[str, Any]:
        text = await asyncio.wait_for(self.connection.recv(), SECONDS)
        message: dict[str, Any] = json.loads(text)
        return message

    async def subscribe(self, **message: Any) -> dict[str, Any]:
        """Subscribe, and the first message that this brings."""
        await self.send(**{"type": "subscribe", "id": "a", **message})
        return await self.next()


@contextlib.asynccontextmanager
async def socket(server: Server, **options: Any) -> AsyncIterator[Socket]:
    url = server.url.replace("http", "ws") + "/v1/connect"
    async with connect(url, max_size=None, **options) as connection:
        yield Socket(connection)


@contextlib.asynccontextmanager
async def events(
    http: httpx.AsyncClient, path: str, headers: dict[str, str] | None = None
) -> AsyncIterator[AsyncIterator[Event]]:
    """The server-sent events of an answer."""
    accept = {"Accept": "text/event-stream", **(headers or {})}
    async with http.stream("GET", path, headers=accept) as response:
        assert response.headers["content-type"] == "text/event-stream"
        yield _parse(response.aiter_bytes())


async def _lines(parts: AsyncIterator[bytes]) -> AsyncIterator[str]:
    # httpx's own lines end at U+2028 too, which those of server-sent events do not.
    rest = b""
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line.decode()


async def _parse(parts: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    fields: dict[str, str] = {}
    async for line in _lines(parts):
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        else:
            if "data" in fields:
                event = json.loads(fields["data"])
                assert event["type"] == fields["event"]
                has_position = event["type"] not in ("gap", "closed")
                assert fields.get("id") == (event["position"] if has_position else None)
                yield event
            fields = {}


async def following(stream: AsyncIterator[Event]) -> Event:
    """The next event."""
    return await asyncio.wait_for(anext(stream), SECONDS)
