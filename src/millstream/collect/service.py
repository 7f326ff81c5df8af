"""Runs a collector process: topics, intake, sources, HTTP, reports, and a clean stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import uvloop

from millstream.collect.capacity.wait_queue import WaitQueues
from millstream.collect.dedup.dedup import Dedup
from millstream.collect.http.admission import Admission
from millstream.collect.http.answer import Answers
from millstream.collect.http.application import CollectApp
from millstream.collect.http.fast_path import CollectFastPath
from millstream.collect.http.peers import Peers
from millstream.collect.http.server import CollectServer
from millstream.collect.intake.failed import FailedStore
from millstream.collect.intake.intake import Intake
from millstream.collect.intake.recovery import resume
from millstream.collect.intake.source_intake import SourceIntake
from millstream.collect.journal import Journal, is_lost, read_bookmarks
from millstream.collect.orphaned_journals import orphaned_journals, send, take_over
from millstream.collect.receipts.lookup import Lookup
from millstream.collect.reporter import Reporter
from millstream.collect.schemas import check_schemas
from millstream.collect.settings import CollectSettings
from millstream.collect.sources import AssignedSource, assign_sources
from millstream.connectors import create_reader
from millstream.connectors.interface import SourceReader
from millstream.errors import MillstreamError
from millstream.log.connection import await_broker
from millstream.log.producing.batch_producer import BatchProducer
from millstream.log.producing.producer import FOREVER, Producer
from millstream.log.signing_key import cluster_key
from millstream.log.topic_names import audit_topic
from millstream.pipeline.app import App
from millstream.pipeline.pipeline_topics import ensure_topics, event_topics
from millstream.runtime.home import Home, collector_name
from millstream.runtime.listen import bind
from millstream.settings import Settings
from millstream.values.receipt import Receipt, Receipts

_REPORT_SECONDS = 20.0  # older reports are useless
_GARBAGE = 10_000  # new objects between two runs of the garbage collector

_log = logging.getLogger(__name__)


def run(app: App, settings: Settings, home: Home, worker: int = 0) -> None:
    """Collect until SIGTERM or SIGINT; blocks.

    As process number `worker` of the `collect.workers` that share a port and a home.
    """
    settings.collect.check_exposure()
    name = collector_name(worker)
    shared = settings.collect.workers > 1
    with home.hold(name):
        listener = bind(settings.collect.host, settings.collect.port, tier="collect", shared=shared)
        try:
            await_broker(settings.log)
            ensure_topics(app, settings.log)
            check_schemas(app, settings.log, settings.collect.accept_schema_change)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_run(app, settings, home, listener, worker))
        finally:
            listener.close()  # not closed otherwise if Kafka does not answer
            home.withdraw()


async def _run(
    app: App, settings: Settings, home: Home, listener: socket.socket, worker: int
) -> None:
    _stop_on(signal.SIGTERM, signal.SIGINT)
    try:
        async with collecting(app, settings, home, listener, worker) as url:
            _collect_garbage_seldom()
            home.announce(collector_name(worker), url=url)
            print(f"collect ready on {url}", flush=True)
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        _log.info("collect ended")


def _collect_garbage_seldom() -> None:
    """Run the garbage collector rarely, and not on objects that stay.

    An event leaves almost no garbage. By default, Python would collect every 70 events, which takes
    a sixth of the time of a batch.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GARBAGE)


def _stop_on(*numbers: signal.Signals) -> None:
    loop, this = asyncio.get_running_loop(), asyncio.current_task()
    assert this is not None

    def end() -> None:
        # Ctrl-C in a terminal arrives twice, also from the supervisor: ignore the second.
        for number in numbers:
            loop.add_signal_handler(number, lambda: None)
        this.cancel()

    for number in numbers:
        loop.add_signal_handler(number, end)


@contextlib.asynccontextmanager
async def collecting(
    app: App, settings: Settings, home: Home, listener: socket.socket, worker: int = 0
) -> AsyncIterator[str]:
    """A ready collector; yields its URL. On exit, open requests are finished.

    As process number `worker` of `collect.workers`.
    """
    workers = settings.collect.workers
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(listener.close)
        queues = WaitQueues(settings.collect.room_timeout)
        journals = {
            number: await _open(stack, home, number, settings, queues)
            for number in (worker, *orphaned_journals(home.journals(), worker, workers))
        }
        sources = await asyncio.to_thread(_assigned_sources, app, home, worker, workers, journals)
        journal = journals.pop(worker)
        orphaned = list(journals.values())
        part = await _assemble(app, settings, home, journal, orphaned, sources, worker, queues)
        stack.push_async_callback(_close, part.producers)
        async with asyncio.TaskGroup() as tasks:
            own = [
                tasks.create_task(part.intake.watch()),
                tasks.create_task(part.reporter.run()),
                tasks.create_task(part.intake.forwarder.run()),
                tasks.create_task(part.server.watch()),
            ]
            await resume(part.intake, settings.log)
            leftovers = await take_over(orphaned, part.intake_of, part.reporter_of, settings.log)
            if part.peers is not None:
                own.append(tasks.create_task(part.peers.publish(part.application.published)))
            serving = tasks.create_task(part.server.serve([listener]))
            feeding = [
                tasks.create_task(send(leftovers)),
                *(
                    tasks.create_task(reader.run(output))
                    for reader, output in zip(part.readers, part.source_intakes, strict=True)
                ),
            ]
            await part.server.ready()
            try:
                yield part.server.url(listener)
            finally:
                for task in feeding:
                    task.cancel()
                await asyncio.gather(*feeding, return_exceptions=True)
                await _end(settings.collect, part, serving)
                for task in own:
                    task.cancel()


@dataclass(frozen=True, slots=True)
class _Parts:
    intake: Intake
    admission: Admission
    producers: list[BatchProducer]  # of this journal, and of orphaned ones
    ids: Producer
    reports: Producer
    readers: list[SourceReader]
    source_intakes: list[SourceIntake]
    reporter: Reporter
    server: CollectServer
    application: CollectApp
    peers: Peers | None  # the other processes on this port
    intake_of: Callable[[Journal], Awaitable[Intake]]
    reporter_of: Callable[[Intake], Reporter]


async def _open(
    stack: contextlib.AsyncExitStack,
    home: Home,
    number: int,
    settings: Settings,
    queues: WaitQueues,
) -> Journal:
    journal = await Journal.open(
        home.journal / str(number), settings.journal, on_room=queues.journal.notify
    )
    stack.push_async_callback(journal.close)
    return journal


def _assigned_sources(
    app: App, home: Home, worker: int, workers: int, opened: Mapping[int, Journal]
) -> list[AssignedSource]:
    """The sources that this process reads: streams with a source are assigned round-robin.

    Bookmarks are read from disk only in journals that this process has not opened.
    """
    streams = [stream.name for stream in app.streams.values() if stream.source is not None]
    if not (streams := streams[worker::workers]):
        return []
    bookmarks = {
        number: opened[number].bookmarks if number in opened else read_bookmarks(folder)
        for number, folder in home.journals().items()
    }
    return assign_sources(streams, worker, bookmarks)


async def _assemble(
    app: App,
    settings: Settings,
    home: Home,
    journal: Journal,
    orphaned: Sequence[Journal],
    sources: Sequence[AssignedSource],
    worker: int,
    queues: WaitQueues,
) -> _Parts:
    collect = settings.collect
    receipts = Receipts(await asyncio.to_thread(cluster_key, settings.log, app.name))
    failed = FailedStore(home.failed)
    ids = Producer(settings.log, patience=FOREVER)
    reports = Producer(settings.log, patience=_REPORT_SECONDS)
    dedup = await Dedup.open(app, settings.log, ids, collect.dedup_ids)
    producers: list[BatchProducer] = []

    async def intake_of(journal: Journal) -> Intake:
        make_producer = partial(BatchProducer, settings.log, event_topics(app))
        intake = Intake(app, collect, journal, make_producer, failed, dedup, queues)
        await intake.forwarder.producer.connect()
        producers.append(intake.forwarder.producer)
        return intake

    def reporter_of(intake: Intake, readers: Sequence[SourceReader] = ()) -> Reporter:
        return Reporter(intake, readers, reports, audit_topic(app.name))

    intake = await intake_of(journal)
    readers: list[SourceReader] = []
    source_intakes: list[SourceIntake] = []
    for name, bookmark_name, bookmark in sources:
        source = app.streams[name].source
        assert source is not None
        readers.append(create_reader(name, source, collect))
        stream = intake.streams[name]
        source_intakes.append(SourceIntake(intake, stream, bookmark_name, source.address, bookmark))
    reporter = reporter_of(intake, readers)
    lookup = Lookup(
        app,
        settings.log,
        receipts,
        collector=journal.identity,
        is_pending=intake.forwarder.is_pending,
        settled=intake.forwarder.settled,
        why_failed=partial(_why_failed, failed, home),
        recent=intake.recent,
    )
    answers = Answers(receipts, intake.delivery_of)
    admission = Admission(intake, collect, queues)
    shares_port = collect.workers > 1
    peers = Peers(home.workers, worker, collect.workers) if shares_port else None
    application = CollectApp(
        app,
        collect,
        intake,
        admission=admission,
        answers=answers,
        pressure=intake.pressure,
        look_up=lookup,
        are_logged=partial(lookup.are_logged, seconds=collect.ack_timeout),
        health=partial(_health, reporter, orphaned),
        sources=lambda: [source.state for source in readers],
        refused_requests=lambda: server.refused,
        usage=lambda: server.usage,
        peers=peers,
    )
    server = CollectServer(
        application,
        collect,
        fast_path=CollectFastPath(intake, admission, answers, intake.pressure, collect.max_body),
        streams=app.streams,
        keys_file=home.keys,
    )
    return _Parts(
        intake=intake,
        admission=admission,
        producers=producers,
        ids=ids,
        reports=reports,
        readers=readers,
        source_intakes=source_intakes,
        reporter=reporter,
        server=server,
        application=application,
        peers=peers,
        intake_of=intake_of,
        reporter_of=reporter_of,
    )


def _health(reporter: Reporter, orphaned: Sequence[Journal]) -> tuple[str, dict[str, Any]]:
    reason, details = reporter.health()
    for journal in orphaned:
        details["journal"]["pending_entries"] += journal.pending_entries
        details["journal"]["pending_bytes"] += journal.pending_bytes
    return reason, details


async def _end(settings: CollectSettings, part: _Parts, serving: asyncio.Task[None]) -> None:
    loop = asyncio.get_running_loop()
    releases = [
        loop.call_later(settings.stop_timeout, release)
        for release in (part.admission.release_waiting, part.intake.release_waiting)
    ]
    part.server.should_exit = True
    await serving
    for each in releases:
        each.cancel()
    lost = sum([await each.close(settings.stop_timeout) for each in part.source_intakes])
    if lost:
        _log.error("%d messages of sources were not written to disk", lost)
    await part.intake.forwarder.drain(settings.stop_timeout)
    await part.intake.dedup.close(0.0)
    await _close(part.producers)
    await part.ids.close(0.0)
    part.reporter.end()
    await part.reports.close(1.0)


async def _close(producers: list[BatchProducer]) -> None:
    while producers:
        await producers.pop().close()


def _why_failed(failed: FailedStore, home: Home, receipt: Receipt) -> str | None:
    for folder in home.journals().values():
        if is_lost(folder, receipt.collector, receipt.sequence):
            return "it was accepted, and lost: its entry in the collector's journal is damaged"
    try:
        found = failed.find(receipt.collector, receipt.sequence, receipt.index)
    except MillstreamError:  # senders never see the path that this error names
        return "Kafka refused it, and its file in the failed store is damaged"
    return None if found is None else found.reason
