"""Runs the collection tier: topics, intake, sources, HTTP, reports, and a clean end of it all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Sequence

import uvicorn
import uvloop

from millstream.app import App
from millstream.collect.http import CollectApp
from millstream.collect.identity import next_identity
from millstream.collect.inlet import StreamInlet
from millstream.collect.intake import Intake
from millstream.collect.interface import Reader
from millstream.collect.lookup import LogLookup
from millstream.collect.reporter import Reporter
from millstream.collect.settings import CollectSettings
from millstream.collect.sources import reader_of
from millstream.home import Home
from millstream.listen import bind
from millstream.log.connection import await_broker
from millstream.log.producer import Producer
from millstream.log.topics import audit_topic, ensure_topics
from millstream.settings import Settings

_BROKER_SECONDS = 60.0
_SOURCE_PATIENCE_SECONDS = 3600.0
_IDLE_SECONDS = 65  # longer than senders' own pools keep a connection, so that they close first

_logger = logging.getLogger(__name__)


def run(app: App, settings: Settings, home: Home) -> None:
    """Collect until SIGTERM or SIGINT; blocks."""
    listener = bind(settings.collect.host, settings.collect.port, tier="collect")
    await_broker(settings.log, timeout=_BROKER_SECONDS)
    ensure_topics(app, settings.log)
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
    app: App, settings: Settings, home: Home, listener: socket.socket
) -> AsyncIterator[str]:
    """The tier, ready, at the URL that is given; on leaving, what is under way is finished."""
    # What was answered with a 503 must not get into the log minutes later, when its sender has sent
    # it again. Nobody sends a source's events again: waiting is what keeps them from being doubled.
    producer = Producer(settings.log, patience=settings.collect.ack_timeout)
    patient = Producer(settings.log, patience=_SOURCE_PATIENCE_SECONDS)
    intake = Intake(app, settings.collect, producer, next_identity(home))
    pulled = [stream for stream in app.streams.values() if stream.source is not None]
    readers: Sequence[Reader] = [
        reader_of(stream.name, stream.source, settings.collect)
        for stream in pulled
        if stream.source is not None
    ]
    inlets = [
        StreamInlet(intake, patient, intake.lanes[stream.name], stream.source.address)
        for stream in pulled
        if stream.source is not None
    ]
    reporter = Reporter(intake, readers, producer, audit_topic(app.name))
    server = _Server(
        CollectApp(
            app,
            settings.collect,
            intake,
            look_up=LogLookup(settings.log),
            not_ready=reporter.not_ready,
            sources=lambda: [source.state for source in readers],
        ),
        settings.collect,
    )
    async with asyncio.TaskGroup() as tasks:
        own = [tasks.create_task(intake.watch()), tasks.create_task(reporter.run())]
        await reporter.first_confirmed()
        serving = tasks.create_task(server.serve([listener]))
        pulling = [
            tasks.create_task(reader.run(inlet))
            for reader, inlet in zip(readers, inlets, strict=True)
        ]
        await server.ready()
        try:
            yield _url(listener)
        finally:
            for task in pulling:
                task.cancel()
            await asyncio.gather(*pulling, return_exceptions=True)
            giving_up = asyncio.get_running_loop().call_later(
                settings.collect.stop_timeout, intake.give_up
            )
            server.should_exit = True
            await serving
            giving_up.cancel()
            await _finish(settings.collect, producer, patient, inlets, reporter)
            for task in own:
                task.cancel()


async def _finish(
    settings: CollectSettings,
    producer: Producer,
    patient: Producer,
    inlets: Sequence[StreamInlet],
    reporter: Reporter,
) -> None:
    lost = sum([await inlet.close(settings.stop_timeout) for inlet in inlets])
    lost += await patient.flush(settings.stop_timeout)
    if lost:
        _logger.error("%d events that were read from sources did not get to Kafka", lost)
    reporter.report()
    await asyncio.gather(producer.close(1.0), patient.close(0.0))


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """uvicorn, whose end we decide: it would raise the signal again after its own shutdown."""

    def __init__(self, application: CollectApp, settings: CollectSettings) -> None:
        self._started = asyncio.Event()
        super().__init__(
            uvicorn.Config(
                application,
                loop="uvloop",
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=_IDLE_SECONDS,
                timeout_graceful_shutdown=round(settings.stop_timeout) + 1,
            )
        )
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started.set()

    async def ready(self) -> None:
        """Wait until it listens."""
        await self._started.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
