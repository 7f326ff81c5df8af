"""`millstream serve`: reads the views from the log and answers clients."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import uuid
from collections.abc import Coroutine
from typing import Any

import msgspec
import uvloop

from millstream.errors import LogError
from millstream.log.connection import await_broker
from millstream.log.producing.producer import Producer
from millstream.log.record import Record
from millstream.log.topic_names import (
    audit_topic,
    ledger_topic,
    stream_topic,
    view_topic,
    views_topic,
)
from millstream.pipeline.app import App
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.runtime.failing_processes import Failure, read_failures
from millstream.runtime.home import Home
from millstream.runtime.listen import bind
from millstream.schema import type_ddl
from millstream.serve.context import State
from millstream.serve.routes import Http
from millstream.serve.system import System
from millstream.serve.transports.websocket import protocol
from millstream.serve.views.on_demand import Streams
from millstream.serve.views.replay import Replay
from millstream.serve.views.served_ledger import Ledger
from millstream.serve.views.served_view import Live
from millstream.serve.views.view_readers import Readings, Tail
from millstream.settings import Settings
from millstream.store.sql.sql import Sql
from millstream.values.clock import now_ms, to_ms_or_zero
from millstream.values.report import Column, Report, ViewCounts, ViewDescription
from millstream.web.server import HttpServer

_log = logging.getLogger(__name__)
_REFRESH_SECONDS = 15.0


def run(app: App, settings: Settings, home: Home) -> None:
    """Serve until SIGTERM or SIGINT."""
    settings.serve.check_exposure()

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        async with Server(app, settings, home) as server:
            if await server.wait_ready(stop):
                # What is held by now stays: the collector of garbage need not look at it again.
                gc.collect()
                gc.freeze()
                home.announce("serve", url=server.url)
                print(f"serve ready on {server.url}", flush=True)
                try:
                    await server.wait(stop)
                finally:
                    home.withdraw()

    uvloop.run(main())


class Server:
    """One server process: enter it to listen, leave it to end.

    Which processes keep dying is known if it shares its home with their `run`.
    """

    def __init__(self, app: App, settings: Settings, home: Home | None = None) -> None:
        self._app = app
        self._home = home
        self._settings = settings
        self._instance = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._started_at = now_ms()
        self.state = self._build()
        self._descriptions = Tail(settings.log, views_topic(app.name), self._describe, newest=None)
        self._audit = Tail(settings.log, audit_topic(app.name), self.state.system.take, newest=50)
        self._readings = Readings(settings.log, self.state.views.values())
        self._socket: socket.socket | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ready = asyncio.Event()
        self.url = ""

    async def __aenter__(self) -> Server:
        self._socket = bind(self._settings.serve.host, self._settings.serve.port, tier="serve")
        self._socket.listen(2048)
        self.http = HttpServer(
            Http(self.state),
            self._settings.serve,
            tier="serve",
            stop_seconds=1,
            websocket=protocol(self.state),
        )
        self.state.refused = self.http.refused
        self.url = self.http.url(self._socket)
        self._tasks.append(asyncio.create_task(self.http.serve([self._socket])))
        try:
            await asyncio.to_thread(await_broker, self._settings.log)
            await asyncio.to_thread(ensure_topics, self._app, self._settings.log)
            await self._descriptions.start()
            await self._audit.start()
        except BaseException:
            await self.__aexit__()
            raise
        self._producer = Producer(self._settings.log)
        works: tuple[Coroutine[Any, Any, None], ...] = (
            self._follow(),
            self.state.sql.run(),
            self._report(),
            self._refresh(),
            self.http.watch(),
        )
        self._tasks += [asyncio.create_task(work) for work in works]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.state.ready = False
        self.state.close()
        for connection in list(self.state.connections):
            connection.close(1001, "the server is going away; connect again")
        self.http.should_exit = True
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for tail in (self._descriptions, self._audit):
            tail.stop()
        for on_demand in (self.state.streams, self.state.ledgers):
            on_demand.stop()
        await self.state.sql.stop()
        if hasattr(self, "_producer"):
            await self._producer.close(1.0)

    async def wait_ready(self, stop: asyncio.Event | None = None) -> bool:
        """Whether every view has caught up with the log; False if told to stop before."""
        await self.wait(self._ready, *([stop] if stop else []))
        return self.state.ready

    async def wait(self, *events: asyncio.Event) -> None:
        """Return when one of these happens; raise if a part of the server fails."""
        waiting = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait((*waiting, *self._tasks), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiting:
                waiter.cancel()
        for task in self._tasks:
            if task.done():
                task.result()

    def _failures(self) -> tuple[Failure, ...]:
        return () if self._home is None else read_failures(self._home)

    def _build(self) -> State:
        app, settings = self._app, self._settings.serve
        views = {
            view.name: Live(
                view.name, "view", view_topic(app.name, view.name), settings, key=view.key
            )
            for view in app.views.values()
        }
        streams = {
            stream.name: Live(
                stream.name,
                "stream",
                stream_topic(app.name, stream.name),
                settings,
                columns=tuple(Column(f.name, type_ddl(f.type)) for f in stream.schema.fields),
            )
            for stream in app.streams.values()
        }
        ledgers = {
            view.name: Ledger(views[view.name], ledger_topic(app.name, view.name), settings)
            for view in app.views.values()
            if view.ledger
        }
        sql = Sql(
            memory=settings.query_memory,
            seconds=settings.query_seconds,
            newest=settings.newest_rows,
            most_bytes=settings.query_bytes,
        )
        for live in views.values():
            sql.add(live)
            live.listeners.append(sql.changed)
        log = self._settings.log
        return State(
            app=app,
            settings=settings,
            views=views,
            streams=Streams(log, streams),
            ledgers=Streams(log, ledgers),
            replay=Replay(log, settings.replay_limit),
            system=System(app, views, streams, self._failures),
            sql=sql,
        )

    def _describe(self, record: Record) -> None:
        try:
            description = msgspec.json.decode(record.value or b"", type=ViewDescription)
        except msgspec.MsgspecError:
            return
        live = self.state.views.get(description.name)
        if live is None:
            return
        if (ledger := self.state.ledgers.lives.get(live.name)) is not None:
            ledger.describe(description)
        held = live.description
        topic = description.topic or view_topic(self._app.name, live.name)
        if topic != live.topic and live.epoch:
            self._readings.move(live, description, topic)
            return
        live.topic = topic
        live.describe(description)
        if held is not None and held.generation != description.generation:
            self._readings.expect_change()

    async def _follow(self) -> None:
        # What a view's columns are must be known before its rows are read: decimals depend on it.
        await self._descriptions.caught_up.wait()
        reading = asyncio.create_task(self._readings.run())
        try:
            await self._readings.caught_up.wait()
            self.state.ready = True
            self._ready.set()
            await reading
        finally:
            reading.cancel()

    async def _report(self) -> None:
        while True:
            report = Report(
                tier="serve",
                instance=self._instance,
                at=now_ms(),
                started_at=self._started_at,
                views={name: _counts(self._app, live) for name, live in self.state.views.items()},
                clients=self.state.clients,
            )
            with contextlib.suppress(LogError):
                future = self._producer.send(
                    audit_topic(self._app.name), msgspec.json.encode(report), key=self._instance
                )
                future.add_done_callback(lambda f: f.cancelled() or f.exception())
            await asyncio.sleep(1.0)

    async def _refresh(self) -> None:
        """Tell clients how far they have come whose filters let nothing through."""
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            for connection in list(self.state.connections):
                connection.refresh()


def _counts(app: App, live: Live) -> ViewCounts:
    return ViewCounts(
        rows=len(live.table),
        changes=live.tally.changes.total,
        rate=round(live.tally.changes.per_second(), 2),
        analyze_ms=live.tally.analyze.summary(),
        serve_ms=live.tally.serve.summary(),
        position=str(live.position),
        read={
            # A batch's number stands under the view's own name: it tells nothing of the inputs.
            (stream_topic if source in app.streams else view_topic)(app.name, source): dict(offsets)
            for source, offsets in live.tally.read.items()
            if source != live.name
        },
        newest_received_at=to_ms_or_zero(live.tally.newest_received),
    )
