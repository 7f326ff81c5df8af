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
from collections.abc import Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from millstream.errors import LogError
from millstream.expression.condition import event_columns
from millstream.log.connection import await_broker
from millstream.log.producing.producer import Producer
from millstream.log.record import Record
from millstream.log.signing_key import cluster_key
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
from millstream.runtime.operator_key import operator_key
from millstream.serve.access.missing_login import warn_of_missing_login
from millstream.serve.connections import Connections
from millstream.serve.context import Context
from millstream.serve.drain import drain
from millstream.serve.groups.groups import Groups
from millstream.serve.queries.live_query import LiveQueries
from millstream.serve.queries.named_query import NamedQueries
from millstream.serve.server import ServeServer
from millstream.serve.settings import ServeSettings
from millstream.serve.system import System
from millstream.serve.views.on_demand import OnDemandViews
from millstream.serve.views.replay import Replay
from millstream.serve.views.served_ledger import ServedLedger
from millstream.serve.views.served_view import ServedView
from millstream.serve.views.view_readers import TopicTail, ViewReaders
from millstream.settings import Settings
from millstream.store.sql.service import SqlService
from millstream.values.clock import now_ms, to_ms_or_zero
from millstream.values.report import ProcessReport, ViewCounts
from millstream.values.view_description import ViewDescription
from millstream.web.problem import Problem

_log = logging.getLogger(__name__)
_POSITION_SECONDS = 15.0


def run(app: App, settings: Settings, home: Home) -> None:
    """Serve until SIGTERM, which drains, or SIGINT; a second signal ends a drain."""
    settings.serve.check_exposure()

    async def main() -> None:
        stop, hurry = asyncio.Event(), asyncio.Event()

        def handle(number: int) -> None:
            if stop.is_set() or number == signal.SIGINT:
                hurry.set()
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, handle, number)
        async with Server(app, settings, home) as server:
            if await server.wait_ready(stop):
                # Views stay in memory: the garbage collector need not check them again.
                gc.collect()
                gc.freeze()
                home.announce("serve", url=server.url, **_trust(settings.serve))
                print(f"serve ready on {server.url}", flush=True)
                try:
                    await server.wait(stop)
                finally:
                    home.withdraw()
                await drain(server.context, settings.serve.drain_seconds, hurry)

    uvloop.run(main())


class Server:
    """One server process, as a context manager: it listens within the block.

    With a home, `/v1/system` reports processes of that home that keep failing.
    """

    def __init__(self, app: App, settings: Settings, home: Home | None = None) -> None:
        self._app = app
        self._home = home
        self._settings = settings
        self._instance = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._started_at = now_ms()
        self.context = self._build_context()
        self._descriptions = TopicTail(
            settings.log, views_topic(app.name), self._describe, newest=None
        )
        self._audit = TopicTail(
            settings.log, audit_topic(app.name), self.context.system.add_report, newest=50
        )
        self._view_readers = ViewReaders(settings.log, self.context.views.values())
        self._socket: socket.socket | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ready = asyncio.Event()
        self.url = ""

    async def __aenter__(self) -> Server:
        self._socket = bind(self._settings.serve.host, self._settings.serve.port, tier="serve")
        self._socket.listen(2048)
        self.http = ServeServer(
            self.context,
            keys_file=Path("keys.json") if self._home is None else self._home.keys,
            operator_key=self._operator_key(),
        )
        self.url = self.http.url(self._socket)
        self._tasks.append(asyncio.create_task(self.http.serve([self._socket])))
        try:
            await asyncio.to_thread(await_broker, self._settings.log)
            await asyncio.to_thread(ensure_topics, self._app, self._settings.log)
            key = await asyncio.to_thread(cluster_key, self._settings.log, self._app.name)
            self.context.tickets.use_key(key)
            await self._descriptions.start()
            await self._audit.start()
        except BaseException:
            await self.__aexit__()
            raise
        self._producer = Producer(self._settings.log)
        advertised = self._settings.serve.advertised_url.rstrip("/") or self.url
        await self.context.groups.start(self._producer, advertised)
        background: tuple[Coroutine[Any, Any, None], ...] = (
            self._read_views(),
            self.context.sql.run(),
            self._report(),
            self._send_positions(),
            self.context.groups.run(),
            self.http.watch(),
            self.context.queries.run(),
        )
        self._tasks += [asyncio.create_task(work) for work in background]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.context.ready = False
        for connection in self.context.connections:
            connection.close(1001, "the server is stopping; connect again")
        self.context.close()
        self.http.should_exit = True
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._descriptions.stop()
        self._audit.stop()
        self.context.streams.stop()
        self.context.ledgers.stop()
        self.context.live.stop()
        await self.context.sql.stop()
        await self.context.groups.stop()
        if hasattr(self, "_producer"):
            await self._producer.close(1.0)

    async def wait_ready(self, stop: asyncio.Event | None = None) -> bool:
        """Wait until every view has caught up with the log; False if `stop` is set first."""
        await self.wait(self._ready, *([stop] if stop else []))
        return self.context.ready

    async def wait(self, *events: asyncio.Event) -> None:
        """Wait for one of these events; raise if a part of the server fails."""
        waiting = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait((*waiting, *self._tasks), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiting:
                waiter.cancel()
        for task in self._tasks:
            if task.done():
                task.result()

    def _operator_key(self) -> str:
        """The key of commands on this machine; empty if nobody has to log in."""
        if self._home is None or not self._settings.serve.auth:
            return ""
        return operator_key(self._home)

    def _failures(self) -> tuple[Failure, ...]:
        return () if self._home is None else read_failures(self._home)

    def _warnings(self) -> list[str]:
        """What the settings make of the pipeline and hardly anybody wants; the log has it too."""
        warning = warn_of_missing_login(self._app, self._settings.serve)
        if not warning:
            return []
        _log.warning("%s", warning)
        return [warning]

    def _build_context(self) -> Context:
        app, settings = self._app, self._settings.serve
        views = {
            view.name: ServedView(
                view.name,
                "view",
                view_topic(app.name, view.name),
                settings,
                key=view.key,
                policy=view.policy,
            )
            for view in app.views.values()
        }
        streams = {
            stream.name: ServedView(
                stream.name,
                "stream",
                stream_topic(app.name, stream.name),
                settings,
                columns=event_columns(stream.schema),
                policy=stream.policy,
            )
            for stream in app.streams.values()
        }
        ledgers = {
            view.name: ServedLedger(
                views[view.name], ledger_topic(app.name, view.name), settings, view.ledger_policy
            )
            for view in app.views.values()
            if view.ledger
        }
        sql = SqlService(
            memory=settings.query_memory,
            seconds=settings.query_seconds,
            newest=settings.newest_rows,
            max_bytes=settings.query_bytes,
        )
        for served in views.values():
            sql.add(served)
            served.listeners.append(sql.changed)
        queries = NamedQueries(app.queries, views, sql)
        log = self._settings.log
        system = System(
            app,
            views,
            streams,
            self._failures,
            queries.served,
            warnings=self._warnings(),
        )
        sources: Mapping[str, Mapping[str, ServedView]] = {
            "view": views,
            "stream": streams,
            "ledger": ledgers,
        }
        return Context(
            app=app,
            settings=settings,
            views=views,
            streams=OnDemandViews(log, streams),
            ledgers=OnDemandViews(log, ledgers),
            replay=Replay(log, settings.replay_limit),
            system=system,
            sql=sql,
            groups=Groups(
                app.name,
                log,
                settings.max_groups,
                partial(_find_source, sources),
                system.servers,
            ),
            queries=queries,
            live=LiveQueries(sql, views, settings),
            connections=Connections(settings.max_connections_per_caller),
        )

    def _describe(self, record: Record) -> None:
        try:
            description = msgspec.json.decode(record.value or b"", type=ViewDescription)
        except msgspec.MsgspecError:
            return
        served = self.context.views.get(description.name)
        if served is None:
            return
        if (ledger := self.context.ledgers.served.get(served.name)) is not None:
            ledger.describe(description)
        held = served.description
        topic = description.topic or view_topic(self._app.name, served.name)
        if topic != served.topic and served.epoch:
            self._view_readers.switch_topic(served, description, topic)
            return
        served.topic = topic
        served.describe(description)
        if held is not None and held.generation != description.generation:
            self._view_readers.expect_change()

    async def _read_views(self) -> None:
        # A view's columns must be known before its rows are read: they decide how to read decimals.
        await self._descriptions.caught_up.wait()
        reading = asyncio.create_task(self._view_readers.run())
        try:
            await self._view_readers.caught_up.wait()
            self.context.ready = True
            self._ready.set()
            await reading
        finally:
            reading.cancel()

    async def _report(self) -> None:
        while True:
            report = ProcessReport(
                tier="serve",
                instance=self._instance,
                at=now_ms(),
                started_at=self._started_at,
                views={
                    name: _counts(self._app, served) for name, served in self.context.views.items()
                },
                clients=len(self.context.connections),
                url=self.context.groups.url,
                groups=self.context.groups.counts(),
            )
            with contextlib.suppress(LogError):
                future = self._producer.send(
                    audit_topic(self._app.name), msgspec.json.encode(report), key=self._instance
                )
                future.add_done_callback(lambda f: f.cancelled() or f.exception())
            await asyncio.sleep(1.0)

    async def _send_positions(self) -> None:
        """Send positions to clients whose filters have hidden all recent changes."""
        while True:
            await asyncio.sleep(_POSITION_SECONDS)
            for connection in self.context.connections:
                connection.send_positions()


def _find_source(
    sources: Mapping[str, Mapping[str, ServedView]], kind: str, name: str
) -> ServedView:
    served = sources[kind].get(name)
    if served is None:
        raise Problem(
            404,
            f"the pipeline has no {kind} {name!r} any more",
            remedy="drop the groups that read it",
        )
    return served


def _trust(settings: ServeSettings) -> dict[str, Any]:
    """The certificate by which commands on this machine recognise the server."""
    if not settings.tls_certificate:
        return {}
    return {"certificate": str(Path(settings.tls_certificate).resolve())}


def _counts(app: App, served: ServedView) -> ViewCounts:
    return ViewCounts(
        rows=len(served.table),
        changes=served.metrics.changes.total,
        rate=round(served.metrics.changes.per_second(), 2),
        analyze_ms=served.metrics.analyze.summary(),
        serve_ms=served.metrics.serve.summary(),
        position=str(served.position),
        read={
            # The view's own name stands for a batch number, which says nothing about inputs.
            (stream_topic if source in app.streams else view_topic)(app.name, source): dict(offsets)
            for source, offsets in served.metrics.read.items()
            if source != served.name
        },
        newest_received_at=to_ms_or_zero(served.metrics.newest_received),
    )
