"""Runs the collection tier: topics, intake, sources, HTTP, reports, and a clean end of it all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial

import uvloop

from millstream.app import App
from millstream.collect.answer import Answers
from millstream.collect.exposure import check_exposure
from millstream.collect.failed import FailedStore
from millstream.collect.http import CollectApp
from millstream.collect.inlet import StreamInlet
from millstream.collect.intake import Intake
from millstream.collect.interface import Reader
from millstream.collect.journal import Journal
from millstream.collect.lookup import Lookup
from millstream.collect.pressure import Pressure
from millstream.collect.recover import find_arrived
from millstream.collect.reporter import Reporter
from millstream.collect.schemas import check_schemas
from millstream.collect.secrets import cluster_key
from millstream.collect.server import Server
from millstream.collect.settings import CollectSettings
from millstream.collect.sources import reader_of
from millstream.home import Home
from millstream.listen import bind
from millstream.log.connection import await_broker
from millstream.log.producer import FOREVER, Producer
from millstream.log.topics import audit_topic, ensure_topics
from millstream.receipt import Receipt, Receipts
from millstream.settings import Settings

_BROKER_SECONDS = 60.0
_REPORT_SECONDS = 20.0  # a report that is older says nothing any more

_logger = logging.getLogger(__name__)


def run(app: App, settings: Settings, home: Home) -> None:
    """Collect until SIGTERM or SIGINT; blocks."""
    check_exposure(settings.collect)
    with home.hold("collect"):
        listener = bind(settings.collect.host, settings.collect.port, tier="collect")
        await_broker(settings.log, timeout=_BROKER_SECONDS)
        ensure_topics(app, settings.log)
        check_schemas(app, settings.log, settings.collect.accept_schema_change)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(app, settings, home, listener))


async def _run(app: App, settings: Settings, home: Home, listener: socket.socket) -> None:
    _end_on_signals()
    try:
        async with collecting(app, settings, home, listener) as url:
            home.announce("collect", url=url)
            print(f"collect ready on {url}", flush=True)
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        _logger.info("collect ended")
    finally:
        home.withdraw()


def _end_on_signals() -> None:
    loop, this = asyncio.get_running_loop(), asyncio.current_task()
    assert this is not None

    def end() -> None:
        # A terminal's Ctrl-C comes to us twice, by itself and from the supervisor: once is enough.
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: None)
        this.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)


@contextlib.asynccontextmanager
async def collecting(
    app: App, settings: Settings, home: Home, listener: socket.socket, worker: int = 0
) -> AsyncIterator[str]:
    """The tier, ready, at the URL that is given; on leaving, what is under way is finished."""
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(listener.close)
        journal = await Journal.open(home.journal / str(worker), settings.journal)
        stack.push_async_callback(journal.close)
        part = await _assemble(app, settings, home, journal)
        async with asyncio.TaskGroup() as tasks:
            own = [
                tasks.create_task(part.intake.watch()),
                tasks.create_task(part.reporter.run()),
                tasks.create_task(part.intake.forwarder.run()),
                tasks.create_task(part.server.watch()),
            ]
            part.intake.forwarder.open(await find_arrived(journal, part.intake.lanes, settings.log))
            serving = tasks.create_task(part.server.serve([listener]))
            pulling = [
                tasks.create_task(reader.run(inlet))
                for reader, inlet in zip(part.readers, part.inlets, strict=True)
            ]
            await part.server.ready()
            try:
                yield part.server.url(listener)
            finally:
                for task in pulling:
                    task.cancel()
                await asyncio.gather(*pulling, return_exceptions=True)
                await _end(settings.collect, part, serving)
                for task in own:
                    task.cancel()


@dataclass(frozen=True, slots=True)
class _Parts:
    intake: Intake
    producer: Producer
    reports: Producer
    readers: Sequence[Reader]
    inlets: Sequence[StreamInlet]
    reporter: Reporter
    server: Server


async def _assemble(app: App, settings: Settings, home: Home, journal: Journal) -> _Parts:
    collect = settings.collect
    receipts = Receipts(await asyncio.to_thread(cluster_key, settings.log, app.name))
    failed = FailedStore(home.failed)
    producer = Producer(
        settings.log,
        patience=FOREVER,
        buffered_records=max(100_000, 2 * collect.max_pending_events),
        buffered_bytes=max(128 << 20, 2 * collect.max_pending_bytes),
    )
    reports = Producer(settings.log, patience=_REPORT_SECONDS)
    intake = Intake(app, collect, journal, producer, failed)
    readers: list[Reader] = []
    inlets: list[StreamInlet] = []
    for stream in app.streams.values():
        if stream.source is not None:
            readers.append(reader_of(stream.name, stream.source, collect))
            inlets.append(
                StreamInlet(intake, intake.lanes[stream.name], stream.name, stream.source.address)
            )
    reporter = Reporter(intake, readers, reports, audit_topic(app.name))
    lookup = Lookup(
        app,
        settings.log,
        receipts,
        collector=journal.identity,
        is_pending=intake.forwarder.is_pending,
        why_failed=partial(_why_failed, failed),
        recent=intake.recent,
    )
    server = Server(
        CollectApp(
            app,
            collect,
            intake,
            answers=Answers(receipts),
            pressure=Pressure(journal, intake.forwarder.drained),
            look_up=lookup,
            health=reporter.health,
            sources=lambda: [source.state for source in readers],
        ),
        collect,
        streams=app.streams,
        keys_file=home.keys,
    )
    return _Parts(intake, producer, reports, readers, inlets, reporter, server)


async def _end(settings: CollectSettings, part: _Parts, serving: asyncio.Task[None]) -> None:
    loop = asyncio.get_running_loop()
    letting_go = loop.call_later(settings.stop_timeout, part.intake.let_all_go)
    part.server.should_exit = True
    await serving
    letting_go.cancel()
    lost = sum([await inlet.close(settings.stop_timeout) for inlet in part.inlets])
    if lost:
        _logger.error("%d messages of sources did not get onto the disk", lost)
    await part.intake.forwarder.drain(settings.stop_timeout)
    await part.producer.close(0.0)
    part.reporter.end()
    await part.reports.close(1.0)


def _why_failed(failed: FailedStore, receipt: Receipt) -> str | None:
    found = failed.find(receipt.collector, receipt.sequence, receipt.index)
    return None if found is None else found.reason
