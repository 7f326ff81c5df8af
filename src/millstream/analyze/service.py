"""The `analyze` process: plans the views, runs their queries, and reports on them."""

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
from millstream.analyze.planning.planned_query import PlannedQuery
from millstream.analyze.planning.planner import Planner, enough_slots
from millstream.analyze.query.queries import Queries
from millstream.analyze.rebuild.dropping import drop_noted
from millstream.analyze.rebuild.rebuild import Rebuilds
from millstream.analyze.recovery.checkpoint import checkpoint_folder
from millstream.analyze.shedding.governor import Shedding
from millstream.analyze.spark.session import java_process, start_session, task_slots
from millstream.analyze.upkeep import Upkeep
from millstream.analyze.watermarks.late_events import LateEvents
from millstream.errors import LogError, MachineError, ViewFailed
from millstream.log.connection import admin, await_broker, client_config
from millstream.log.topic_names import audit_topic, views_topic
from millstream.pipeline.app import App
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.runtime.home import Home
from millstream.settings import Settings
from millstream.syntax.duration import parse_duration
from millstream.values.clock import now_ms
from millstream.values.report import ProcessReport
from millstream.values.view_description import ViewDescription

_log = logging.getLogger(__name__)
_TICK = 0.25
_WRITE_SECONDS = 10.0
_MORE_MEMORY = "see its messages above; more analyze.driver_memory may help"


def run(app: App, settings: Settings, home: Home) -> None:
    """Keep the app's views up to date until SIGTERM or SIGINT."""
    stopping = threading.Event()
    with _signals(stopping), home.hold("analyze"):
        await_broker(settings.log)
        ensure_topics(app, settings.log)
        partitions = _partitions(settings)
        # Each view may be rebuilt beside itself.
        slots = 2 * enough_slots(app, settings, partitions)
        spark = start_session(settings.analyze, slots, app.name, home.path / "spark")
        try:
            Analyze(app, settings, home, spark).run(stopping)
        except (Py4JError, ConnectionError) as error:
            cause = str(error).splitlines()[0]
            raise ViewFailed(
                f"Spark's JVM does not answer: {cause}", remedy=_MORE_MEMORY
            ) from error
        finally:
            home.withdraw()
            _end(spark)


class Analyze:
    """All parts of the tier, on a Spark session that is there."""

    def __init__(self, app: App, settings: Settings, home: Home, spark: SparkSession) -> None:
        self._app, self._settings, self._home, self._spark = app, settings, home, spark
        self._process = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        self._producer = Producer(client_config(settings.log, linger_ms=0))
        self._instance = f"{socket.gethostname()}-{os.getpid()}"
        self._started = now_ms()
        self._partitions = _partitions(settings)
        self._described = describe_views(app.name, settings.log)
        self._planned = self._plan()
        plans = [query.plan for query in self._planned]
        log, options = settings.log, settings.analyze
        self._queries = Queries(spark, app, settings, home.checkpoints)
        self._late_events = LateEvents(log, app, plans, parse_duration(options.idle))
        self._upkeep = Upkeep(log, app, plans, self._late_events)
        self._shadow_upkeep = Upkeep(log, app, [], self._late_events, is_served=False)
        self._rebuilds = Rebuilds(
            spark,
            app,
            settings,
            home.checkpoints,
            plans,
            self._queries,
            write=self._write,
            is_final_until=self._shadow_upkeep.is_final_until,
            partitions=self._partitions,
        )
        commit_seconds = parse_duration(options.checkpoint_interval).total_seconds()
        self._lags = LagMonitor(app.name, log, plans, commit_seconds)
        self._shedding = Shedding(self._queries, self._lags)
        self._drifts = DriftMonitor(app.name, app.streams.values(), log, options.drift_sample)

    def run(self, stopping: threading.Event) -> None:
        try:
            self._deploy()
            self._rebuilds.clean_up()
            self._late_events.start()
            self._loop(stopping)
        finally:
            self._close()

    def _plan(self) -> list[PlannedQuery]:
        topics = {name: topic_of(self._app.name, each) for name, each in self._described.items()}
        planner = Planner(self._spark, self._app, self._settings, self._partitions, topics=topics)
        queries = planner.queries()
        check_slots(self._spark, planner.plan().slots)
        return queries

    def _deploy(self) -> None:
        """Continue with the views that are unchanged; rebuild those that changed."""
        changed = []
        for query in self._planned:
            before = self._described.get(query.view.name)
            found = self._compare(query, before)
            _log.info("view %s: %s, %s", found.view, found.kind, found.text)
            # Servers read rows by the pipeline's key: with another key they can't show old rows.
            same_key = before is not None and query.plan.describe().key == before.key
            if found.kind == "incompatible" and same_key and self._rebuilds.can(query.view.name):
                changed.append(query.view.name)
                print(f"view {found.view} was changed ({found.text})", flush=True)
                continue
            self._queries.add(query)
            value = msgspec.json.encode(query.plan.describe())
            self._write(views_topic(self._app.name), query.view.name, value)
        if changed:
            self._rebuilds.begin(changed)
        log, app = self._settings.log, self._app
        for name in drop_noted(self._home, log, app.name, app.views):
            words = f"its state is kept: `millstream drop {name}` removes it"
            print(f"view {name} is not in the pipeline any more; {words}", flush=True)

    def _compare(self, query: PlannedQuery, before: ViewDescription | None) -> Deployment:
        """Compare a view with what ran before, and say whether it can continue from there."""
        found = compare(query.plan, before)
        folder = checkpoint_folder(self._home.checkpoints, query.plan)
        if found.kind not in ("unchanged", "compatible") or folder.parent.is_dir():
            return found
        words = f"but its checkpoint {folder.parent} is missing: computed again from the log"
        print(f"view {found.view} is unchanged, {words}", flush=True)
        return replace(found, text=words)

    def _write(self, topic: str, key: str, value: bytes | None) -> None:
        self._producer.produce(topic, value, key)
        if self._producer.flush(_WRITE_SECONDS):
            raise LogError(f"cannot write to topic {topic}: no answer in {_WRITE_SECONDS:g} s")

    def _loop(self, stopping: threading.Event) -> None:
        is_ready, reported = False, 0.0
        while not stopping.wait(_TICK):
            if self._process is not None and (code := self._process.poll()) is not None:
                raise ViewFailed(f"Spark's JVM ended with code {code}", remedy=_MORE_MEMORY)
            self._queries.tick()
            self._rebuilds.tick()
            if time.monotonic() - reported >= 1:
                reported = time.monotonic()
                self._report()
                if is_ready:  # before that, a query may still create its topic again
                    self._tick_second()
            if not is_ready and self._queries.settled:
                is_ready = True
                self._announce()

    def _report(self) -> None:
        views = self._rebuilds.add_to(self._lags.add_to(self._queries.counts()))
        self._upkeep.update(views)
        report = ProcessReport(
            *("analyze", self._instance, now_ms(), self._started),
            streams=self._late_events.counts(),
            views=views,
            drifts=self._drifts.shifted(),
        )
        with contextlib.suppress(BufferError):  # Kafka is unreachable; the next report has it all
            self._producer.produce(audit_topic(self._app.name), msgspec.json.encode(report))
        self._producer.poll(0)

    def _tick_second(self) -> None:
        rebuilds = self._rebuilds
        self._lags.follow(rebuilds.served)
        self._shadow_upkeep.follow(rebuilds.shadows.ready)
        self._shadow_upkeep.update(rebuilds.shadows.ready_counts())
        self._shadow_upkeep.tick()
        self._upkeep.follow(rebuilds.running)
        self._upkeep.tick(held=rebuilds.leaving)
        self._shedding.tick(rebuilds.running)

    def _announce(self) -> None:
        self._home.announce(
            "analyze",
            spark_pid=java_process(self._spark),
            pipeline=str(Path(self._app.location.file).resolve()),
            views=sorted(self._app.views),
        )
        views = len(self._app.views)
        print(f"analyze ready with {views} view{'s' * (views != 1)}", flush=True)

    def _close(self) -> None:
        self._shadow_upkeep.close()
        self._upkeep.close()
        self._late_events.close()
        self._drifts.close()
        self._lags.close()
        if self._process is None or self._process.poll() is None:
            # Spark logs the end of every task; none of that is worth reading.
            self._spark.sparkContext.setLogLevel("OFF")
            self._rebuilds.close(patience=2.0)
            self._queries.stop(patience=2.0)


def check_slots(spark: SparkSession, needed: int, patience: float = 30.0) -> None:
    """MachineError unless the executors can run as many tasks at once as the queries need."""
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
    """Whether Spark runs in one process, so that the number of slots never changes."""
    return re.fullmatch(r"local(\[.*])?", spark.sparkContext.master or "") is not None


def _partitions(settings: Settings) -> Callable[[str], int]:
    """A function from a topic to its number of partitions."""
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
    """Stop the session; kill its JVM if that takes long, which is no worse than a crash."""
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
