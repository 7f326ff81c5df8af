"""Runs the collection tier: topics, intake, sources, HTTP, reports, and a clean end of it all."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import uvloop

from millstream.collect.dedup.dedup import Dedup
from millstream.collect.http.admission import Admission
from millstream.collect.http.answer import Answers
from millstream.collect.http.application import CollectApp
from millstream.collect.http.fast_path import ShortWay
from millstream.collect.http.server import Server
from millstream.collect.intake.failed import FailedStore
from millstream.collect.intake.intake import Intake
from millstream.collect.intake.recover import resume
from millstream.collect.intake.source_intake import SourceIntake
from millstream.collect.journal import Journal
from millstream.collect.receipts.lookup import Lookup
from millstream.collect.receipts.signing_key import cluster_key
from millstream.collect.reporter import Reporter
from millstream.collect.schemas import check_schemas
from millstream.collect.settings import CollectSettings
from millstream.collect.workers.child import sign_lines
from millstream.collect.workers.merged import Whole
from millstream.collect.workers.orphaned_journals import left_over, send, take_over
from millstream.collect.workers.peers import Siblings
from millstream.collect.workers.worker_channel import Alone, Found, Manned, Orders, Post
from millstream.collect.workers.workers import Policy, Workers
from millstream.connectors import create_reader
from millstream.connectors.interface import SourceReader
from millstream.errors import MachineError, MillstreamError
from millstream.log.connection import await_broker
from millstream.log.producing.batch_producer import BatchProducer
from millstream.log.producing.producer import FOREVER, Producer
from millstream.log.topic_names import audit_topic
from millstream.pipeline.app import App
from millstream.pipeline.pipeline_topics import ensure_topics, event_topics
from millstream.runtime.home import Home
from millstream.runtime.listen import bind, join, share
from millstream.settings import Settings
from millstream.values.receipt import Receipt, Receipts

_KILL_SECONDS = 3.0  # beyond what a worker's own end may take
_REPORT_SECONDS = 20.0  # a report that is older says nothing any more
_GARBAGE = 10_000  # objects that have come and not gone before it is looked for

_log = logging.getLogger(__name__)


def run(app: App, settings: Settings, home: Home, policy: Policy | None = None) -> None:
    """Collect until SIGTERM or SIGINT; blocks. `policy` is for workers that die."""
    settings.collect.check_exposure()
    with home.hold("collect"):
        listener = bind(settings.collect.host, settings.collect.port, tier="collect")
        try:
            if settings.collect.workers > 1:
                _run_workers(app, settings, home, listener, policy)
            else:
                _prepare(app, settings)
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(_run(app, settings, home, listener))
        finally:
            listener.close()  # nobody else does if Kafka does not answer
            home.withdraw()


def _prepare(app: App, settings: Settings) -> None:
    await_broker(settings.log)
    ensure_topics(app, settings.log)
    check_schemas(app, settings.log, settings.collect.accept_schema_change)


async def _run(app: App, settings: Settings, home: Home, listener: socket.socket) -> None:
    _end_on(signal.SIGTERM, signal.SIGINT)
    try:
        async with collecting(app, settings, home, listener) as url:
            _collect_garbage_seldom()
            _tell_ready(home, url)
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        _log.info("collect ended")


def _tell_ready(home: Home, url: str) -> None:
    home.announce("collect", url=url)
    print(f"collect ready on {url}", flush=True)


def _run_workers(
    app: App, settings: Settings, home: Home, listener: socket.socket, policy: Policy | None
) -> None:
    count = settings.collect.workers
    if sys.platform != "linux":
        raise MachineError(
            f"cannot collect with {count} workers: only Linux lets processes share a port so",
            remedy="set collect.workers to 1",
        )
    share(listener)

    def work(worker: int, channel: socket.socket) -> None:
        sign_lines(worker)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            post = Manned(channel, worker, count)
            runner.run(_run_worker(app, settings, home, join(listener), post))

    Workers(
        count,
        _with_source(app),
        partial(_prepare, app, settings),
        work,
        stop_seconds=2 * settings.collect.stop_timeout + _KILL_SECONDS,
        policy=policy,
    ).run(partial(_tell_ready, home))
    _log.info("collect ended")


async def _run_worker(
    app: App, settings: Settings, home: Home, listener: socket.socket, post: Manned
) -> None:
    _end_on(signal.SIGTERM)
    with contextlib.suppress(asyncio.CancelledError):
        async with collecting(app, settings, home, listener, post) as url:
            _collect_garbage_seldom()
            await post.ready(url)
            await asyncio.Event().wait()


def _collect_garbage_seldom() -> None:
    """Spare the garbage collector what stays: an event leaves next to nothing for it to find.

    As Python sets it, it looks every 70 events, and takes a sixth of the time that a batch takes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GARBAGE)


def _end_on(*numbers: signal.Signals) -> None:
    loop, this = asyncio.get_running_loop(), asyncio.current_task()
    assert this is not None

    def end() -> None:
        # A terminal's Ctrl-C comes to us twice, by itself and from the supervisor: once is enough.
        for number in numbers:
            loop.add_signal_handler(number, lambda: None)
        this.cancel()

    for number in numbers:
        loop.add_signal_handler(number, end)


@contextlib.asynccontextmanager
async def collecting(
    app: App, settings: Settings, home: Home, listener: socket.socket, post: Post | None = None
) -> AsyncIterator[str]:
    """The tier, ready, at the URL that is given; on leaving, what is under way is finished.

    As one process, unless `post` says which worker of several it is.
    """
    post = post or Alone(_with_source(app))
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(listener.close)
        journals = {
            number: await _open(stack, home, number, settings)
            for number in (post.worker, *left_over(home.journal, post.worker, post.workers))
        }
        journal = journals.pop(post.worker)
        siblings = None
        if post.workers > 1:
            siblings = Siblings(home.workers, post.worker, post.workers)
            stack.push_async_callback(siblings.close)
        part = await _assemble(app, settings, home, journal, list(journals.values()), siblings)
        stack.push_async_callback(_close, part.outlets)
        async with asyncio.TaskGroup() as tasks:
            own = [
                tasks.create_task(part.intake.watch()),
                tasks.create_task(part.reporter.run()),
                tasks.create_task(part.intake.forwarder.run()),
                tasks.create_task(part.server.watch()),
            ]
            await resume(part.intake, settings.log)
            leftovers = await take_over(
                journals.values(), part.intake_of, part.reporter_of, settings.log
            )
            orders = await post.report(
                {
                    number: Found(each.identity, dict(each.bookmarks))
                    for number, each in [(post.worker, journal), *journals.items()]
                }
            )
            if siblings is not None and part.whole is not None:
                part.whole.owners = orders.owners
                await siblings.listen(part.application)
            _take_up(app, settings.collect, part, orders, post.worker)
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
    outlets: list[BatchProducer]  # of it, and of those for journals that were left over
    ids: Producer
    reports: Producer
    readers: list[SourceReader]
    source_intakes: list[SourceIntake]
    reporter: Reporter
    server: Server
    application: CollectApp
    whole: Whole | None  # of several workers
    intake_of: Callable[[Journal], Awaitable[Intake]]
    reporter_of: Callable[[Intake], Reporter]


async def _open(
    stack: contextlib.AsyncExitStack, home: Home, number: int, settings: Settings
) -> Journal:
    journal = await Journal.open(home.journal / str(number), settings.journal)
    stack.push_async_callback(journal.close)
    return journal


def _take_up(app: App, collect: CollectSettings, part: _Parts, orders: Orders, worker: int) -> None:
    """Make the readers of the sources that this worker has to read."""
    for name, duty in orders.duties.items():
        source = app.streams[name].source
        if duty.worker == worker and source is not None:
            lane = part.intake.lanes[name]
            part.readers.append(create_reader(name, source, collect))
            part.source_intakes.append(
                SourceIntake(part.intake, lane, duty.name, source.address, duty.handed)
            )


def _with_source(app: App) -> list[str]:
    return [stream.name for stream in app.streams.values() if stream.source is not None]


async def _assemble(
    app: App,
    settings: Settings,
    home: Home,
    journal: Journal,
    leftovers: Sequence[Journal],
    siblings: Siblings | None,
) -> _Parts:
    collect = settings.collect
    receipts = Receipts(await asyncio.to_thread(cluster_key, settings.log, app.name))
    failed = FailedStore(home.failed)
    ids = Producer(settings.log, patience=FOREVER)
    reports = Producer(settings.log, patience=_REPORT_SECONDS)
    dedup = await Dedup.open(app, settings.log, ids, collect.dedup_ids)
    outlets: list[BatchProducer] = []

    async def intake_of(journal: Journal) -> Intake:
        outlets.append(await BatchProducer.open(settings.log, event_topics(app)))
        return Intake(app, collect, journal, outlets[-1], failed, dedup)

    def reporter_of(intake: Intake, readers: Sequence[SourceReader] = ()) -> Reporter:
        return Reporter(intake, readers, reports, audit_topic(app.name))

    intake = await intake_of(journal)
    readers: list[SourceReader] = []  # made when it is known which are ours
    reporter = reporter_of(intake, readers)
    lookup = Lookup(
        app,
        settings.log,
        receipts,
        collector=journal.identity,
        is_pending=intake.forwarder.is_pending,
        settled=intake.forwarder.settled,
        why_failed=partial(_why_failed, failed, journal),
        recent=intake.recent,
    )
    answers = Answers(receipts, intake.place)
    admission = Admission(intake, collect)
    application = CollectApp(
        app,
        collect,
        intake,
        admission=admission,
        answers=answers,
        pressure=intake.pressure,
        look_up=lookup,
        are_logged=partial(lookup.are_logged, seconds=collect.ack_timeout),
        health=partial(_health, reporter, leftovers),
        sources=lambda: [source.state for source in readers],
        turned_away=lambda: server.refused,
    )
    whole = None if siblings is None else Whole(application, siblings, receipts)
    server = Server(
        whole or application,
        collect,
        short_way=ShortWay(intake, admission, answers, intake.pressure, collect.max_body),
        streams=app.streams,
        keys_file=home.keys,
    )
    return _Parts(
        intake=intake,
        admission=admission,
        outlets=outlets,
        ids=ids,
        reports=reports,
        readers=readers,
        source_intakes=[],
        reporter=reporter,
        server=server,
        application=application,
        whole=whole,
        intake_of=intake_of,
        reporter_of=reporter_of,
    )


def _health(reporter: Reporter, leftovers: Sequence[Journal]) -> tuple[str, dict[str, Any]]:
    reason, details = reporter.health()
    for journal in leftovers:
        details["journal"]["pending_entries"] += journal.pending_entries
        details["journal"]["pending_bytes"] += journal.pending_bytes
    return reason, details


async def _end(settings: CollectSettings, part: _Parts, serving: asyncio.Task[None]) -> None:
    loop = asyncio.get_running_loop()
    letting_go = [
        loop.call_later(settings.stop_timeout, let_go)
        for let_go in (part.admission.let_all_go, part.intake.let_all_go)
    ]
    part.server.should_exit = True
    await serving
    for each in letting_go:
        each.cancel()
    lost = sum([await each.close(settings.stop_timeout) for each in part.source_intakes])
    if lost:
        _log.error("%d messages of sources did not get onto the disk", lost)
    await part.intake.forwarder.drain(settings.stop_timeout)
    await part.intake.dedup.close(0.0)
    await _close(part.outlets)
    await part.ids.close(0.0)
    part.reporter.end()
    await part.reports.close(1.0)


async def _close(outlets: list[BatchProducer]) -> None:
    while outlets:
        await outlets.pop().close()


def _why_failed(failed: FailedStore, journal: Journal, receipt: Receipt) -> str | None:
    if receipt.collector == journal.identity and journal.damage.find(receipt.sequence) is not None:
        return "it was accepted, and lost: its entry in the collector's journal is damaged"
    try:
        found = failed.find(receipt.collector, receipt.sequence, receipt.index)
    except MillstreamError:  # its path is nothing for those who send
        return "Kafka refused it, and its file in the failed store is damaged"
    return None if found is None else found.reason
