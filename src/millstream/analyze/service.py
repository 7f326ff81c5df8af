"""The `analyze` process: plans the views, keeps their queries up, and tells about them."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType

import msgspec
from confluent_kafka import Producer
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from millstream.analyze.monitor.drift.sampler import DriftMonitor
from millstream.analyze.monitor.lag import LagMonitor
from millstream.analyze.planning.editions import Deployment, compare, describe_views, topic_of
from millstream.analyze.planning.planner import Planner, enough_slots
from millstream.analyze.planning.query import Query
from millstream.analyze.query.queries import Queries
from millstream.analyze.rebuild.dropping import drop_noted
from millstream.analyze.rebuild.rebuild import Rebuilds
from millstream.analyze.recovery.checkpoint import checkpoint_folder
from millstream.analyze.shedding.governor import Shedding
from millstream.analyze.spark.session import java_process, start_session, task_slots
from millstream.analyze.upkeep import Upkeep
from millstream.errors import LogError, MachineError, ViewFailed
from millstream.log.connection import admin, await_broker, client_config
from millstream.log.topic_names import audit_topic, views_topic
from millstream.pipeline.app import App
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.runtime.home import Home
from millstream.settings import Settings
from millstream.syntax.duration import parse_duration
from millstream.values.clock import now_ms
from millstream.values.report import ProcessReport, ViewCounts
from millstream.values.view_description import ViewDescription

_log = logging.getLogger(__name__)
_TICK = 0.25
_TELLING = 10.0


def run(app: App, settings: Settings, home: Home) -> None:
    """Keep the app's views up to date until SIGTERM or SIGINT."""
    stopping = threading.Event()
    with _signals(stopping), home.hold("analyze"):
        await_broker(settings.log)
        ensure_topics(app, settings.log)
        partitions = _partitions(settings)
        # Each view may be computed anew beside itself.
        slots = 2 * enough_slots(app, settings, partitions)
        spark = start_session(settings.analyze, slots, app.name, home.path / "spark")
        try:
            _Analyze(app, settings, home, spark).run(stopping)
        except (Py4JError, ConnectionError) as error:
            raise ViewFailed(
                f"Spark's JVM does not answer: {str(error).splitlines()[0]}",
                remedy="see its lines above; more analyze.driver_memory may help",
            ) from error
        finally:
            home.withdraw()
            _end(spark)


class _Analyze:
    def __init__(self, app: App, settings: Settings, home: Home, spark: SparkSession) -> None:
        self._app, self._settings, self._home, self._spark = app, settings, home, spark
        self._process = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        self._producer = Producer(client_config(settings.log, linger_ms=0))
        self._instance = f"{socket.gethostname()}-{os.getpid()}"
        self._started = now_ms()
        streams, sample = app.streams.values(), settings.analyze.drift_sample
        self._drifts = DriftMonitor(app.name, streams, settings.log, sample)

    def run(self, stopping: threading.Event) -> None:
        partitions = _partitions(self._settings)
        described = describe_views(self._app.name, self._settings.log)
        topics = {name: topic_of(self._app.name, each) for name, each in described.items()}
        planner = Planner(self._spark, self._app, self._settings, partitions, topics=topics)
        queries = planner.queries()
        check_slots(self._spark, planner.plan().slots)
        keeper = Queries(self._spark, self._app, self._settings, self._home.checkpoints)
        self._rebuilds = Rebuilds(
            *(self._spark, self._app, self._settings, self._home, keeper),
            tell=self._tell,
            partitions=partitions,
        )
        self._rebuilds.serve(query.plan for query in queries)
        every = parse_duration(self._settings.analyze.checkpoint_interval).total_seconds()
        self._lags = LagMonitor(self._app.name, self._settings.log, self._rebuilds.plans, every)
        self._deploy(keeper, queries, described)
        self._rebuilds.clean_up()
        try:
            self._keep(keeper, stopping)
        finally:
            self._drifts.close()
            self._lags.close()
            if self._process is None or self._process.poll() is None:
                # Every task that is ended tells so at length; nothing of it is news.
                self._spark.sparkContext.setLogLevel("OFF")
                self._rebuilds.close(patience=2.0)
                keeper.stop(patience=2.0)

    def _deploy(
        self, keeper: Queries, queries: list[Query], described: dict[str, ViewDescription]
    ) -> None:
        """Go on with the views that are as they were; compute those anew that are not."""
        anew = []
        for query in queries:
            before = described.get(query.view.name)
            found = self._compare(query, before)
            _log.info("view %s: %s, %s", found.view, found.kind, found.text)
            # Servers read rows by the pipeline's key: under another, they can't show the old ones.
            same_key = before is not None and query.plan.describe().key == before.key
            if found.kind == "incompatible" and same_key and self._rebuilds.can(query.view.name):
                anew.append(query.view.name)
                print(f"view {found.view} was changed ({found.text})", flush=True)
                continue
            keeper.add(query)
            value = msgspec.json.encode(query.plan.describe())
            self._tell(views_topic(self._app.name), query.view.name, value)
        if anew:
            self._rebuilds.begin(anew)
        log, app = self._settings.log, self._app
        for name in drop_noted(self._home, log, app.name, app.views):
            words = f"its state is kept: `millstream drop {name}` removes it"
            print(f"view {name} is not in the pipeline any more; {words}", flush=True)

    def _compare(self, query: Query, before: ViewDescription | None) -> Deployment:
        """A view against what ran before, and whether it can go on from there."""
        found = compare(query.plan, before)
        folder = checkpoint_folder(self._home.checkpoints, query.plan)
        if found.kind not in ("unchanged", "compatible") or folder.parent.is_dir():
            return found
        words = f"but its checkpoint {folder.parent} is missing: computed again from the log"
        print(f"view {found.view} is unchanged, {words}", flush=True)
        return replace(found, text=words)

    def _tell(self, topic: str, key: str, value: bytes | None) -> None:
        self._producer.produce(topic, value, key)
        if self._producer.flush(_TELLING):
            raise LogError(f"cannot write to topic {topic}: no answer in {_TELLING:g} s")

    def _keep(self, keeper: Queries, stopping: threading.Event) -> None:
        ready, reported = False, 0.0
        keeping = Upkeep(self._settings, self._app, self._rebuilds.plans)
        beside = keeping.beside()  # for what is computed anew
        shedding = Shedding(keeper, self._lags)
        try:
            while not stopping.wait(_TICK):
                if self._process is not None and (code := self._process.poll()) is not None:
                    raise ViewFailed(
                        f"Spark's JVM ended with code {code}",
                        remedy="see its lines above; more analyze.driver_memory may help",
                    )
                keeper.tick()
                self._rebuilds.tick(beside.is_final_until)
                if time.monotonic() - reported >= 1:
                    reported = time.monotonic()
                    counts = self._rebuilds.add_to(self._lags.tell(keeper.counts()))
                    self._report(keeping, counts)
                    if ready:  # each topic is the one that its query writes to
                        self._lags.follow(self._rebuilds.plans)
                        beside.follow(self._rebuilds.ready)
                        beside.note(self._rebuilds.counts())
                        beside.tick()
                        keeping.follow(self._rebuilds.kept)
                        keeping.tick(held=self._rebuilds.leaving)
                        shedding.tick(self._rebuilds.kept)
                if not ready and keeper.settled:
                    ready = True
                    self._home.announce(
                        "analyze",
                        spark_pid=java_process(self._spark),
                        pipeline=str(Path(self._app.location.file).resolve()),
                        views=sorted(self._app.views),
                    )
                    views = len(self._app.views)
                    print(f"analyze ready with {views} view{'s' * (views != 1)}", flush=True)
        finally:
            beside.close()
            keeping.close()

    def _report(self, keeping: Upkeep, views: dict[str, ViewCounts]) -> None:
        keeping.note(views)
        report = ProcessReport(
            *("analyze", self._instance, now_ms(), self._started),
            streams=keeping.streams(),
            views=views,
            drifts=self._drifts.shifted(),
        )
        with contextlib.suppress(BufferError):  # Kafka is away: the next report tells as much
            self._producer.produce(audit_topic(self._app.name), msgspec.json.encode(report))
        self._producer.poll(0)


def check_slots(spark: SparkSession, needed: int, patience: float = 30.0) -> None:
    """MachineError unless the session's executors run as many tasks at once as the queries need."""
    deadline = time.monotonic() + patience
    while (have := task_slots(spark)) < needed:
        if _is_local(spark) or time.monotonic() > deadline:
            raise MachineError(
                f"the views need {needed} task slots at once, but Spark has {have}",
                remedy="add workers or cores, use fewer partitions, or run views with"
                ' mode="micro_batch"',
            )
        time.sleep(0.2)


def _is_local(spark: SparkSession) -> bool:
    """Whether the session has the slots that it will ever have, being in one process."""
    return re.fullmatch(r"local(\[.*])?", spark.sparkContext.master or "") is not None


def _partitions(settings: Settings) -> Callable[[str], int]:
    """How many partitions a topic has."""
    topics = admin(settings.log).list_topics(timeout=10).topics

    def count(topic: str) -> int:
        found = topics.get(topic)
        return len(found.partitions) if found is not None else settings.log.partitions

    return count


@contextlib.contextmanager
def _signals(stopping: threading.Event) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    before = {each: signal.signal(each, stop) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _end(spark: SparkSession) -> None:
    """End the session, and its JVM by force if that takes long: it costs what a crash costs."""
    process = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    stopper = threading.Thread(target=_stop, args=(spark,), daemon=True)
    stopper.start()
    stopper.join(2.0)
    if process is not None:
        process.kill()
        process.wait()


def _stop(spark: SparkSession) -> None:
    with contextlib.suppress(Exception):
        spark.stop()
