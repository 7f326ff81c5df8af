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
from types import FrameType

import msgspec
from confluent_kafka import KafkaException, Producer
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from millstream.analyze.expiry import Expiry
from millstream.analyze.planner import Planner, enough_slots
from millstream.analyze.queries import Queries
from millstream.analyze.session import java_process, start_session, task_slots
from millstream.app import App
from millstream.audit import Report
from millstream.errors import MachineError, ViewFailed
from millstream.home import Home
from millstream.log.connection import admin, await_broker, client_config
from millstream.log.topics import audit_topic, ensure_topics, views_topic
from millstream.settings import Settings

_LOGGER = logging.getLogger("millstream.analyze")
_TICK = 0.25
_KAFKA_PATIENCE = 60.0


def run(app: App, settings: Settings, home: Home) -> None:
    """Keep the app's views up to date until SIGTERM or SIGINT."""
    stopping = threading.Event()
    with _signals(stopping), home.hold("analyze"):
        await_broker(settings.log, _KAFKA_PATIENCE)
        ensure_topics(app, settings.log)
        partitions = _partitions(settings)
        spark = start_session(
            settings.analyze, enough_slots(app, settings, partitions), app.name, home.path / "spark"
        )
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
        self._started = _now()

    def run(self, stopping: threading.Event) -> None:
        planner = Planner(self._spark, self._app, self._settings, _partitions(self._settings))
        queries = planner.queries()
        check_slots(self._spark, planner.plan().slots)
        keeper = Queries(self._spark, self._app, self._settings, self._home.checkpoints)
        keeper.keep(queries)
        self._kept = [query.plan for query in queries]
        for query in queries:
            value = msgspec.json.encode(query.plan.describe())
            self._producer.produce(views_topic(self._app.name), value, query.view.name)
        try:
            self._keep(keeper, stopping)
        finally:
            if self._process is None or self._process.poll() is None:
                # Every task that is ended tells so at length; nothing of it is news.
                self._spark.sparkContext.setLogLevel("OFF")
                keeper.stop(patience=2.0)

    def _keep(self, keeper: Queries, stopping: threading.Event) -> None:
        ready, reported = False, 0.0
        expiry: Expiry | None = None
        while not stopping.wait(_TICK):
            if self._process is not None and (code := self._process.poll()) is not None:
                raise ViewFailed(
                    f"Spark's JVM ended with code {code}",
                    remedy="see its lines above; more analyze.driver_memory may help",
                )
            keeper.tick()
            if time.monotonic() - reported >= 1:
                reported = time.monotonic()
                self._report(keeper)
                expiry = self._expire(expiry, ready)
            if not ready and keeper.settled:
                ready = True
                self._home.announce("analyze", spark_pid=java_process(self._spark))
                views = len(self._app.views)
                print(f"analyze ready with {views} view{'s' * (views != 1)}", flush=True)

    def _expire(self, expiry: Expiry | None, ready: bool) -> Expiry | None:
        """Write the ends of rows, once each topic is the one that its query writes to."""
        if not ready:
            return None
        try:
            expiry = expiry or Expiry(self._settings.log, self._kept)
            expiry.tick()
        except KafkaException as error:
            _LOGGER.warning("rows end later than they should: %s", error.args[0].str())
        return expiry

    def _report(self, keeper: Queries) -> None:
        report = Report("analyze", self._instance, _now(), self._started, views=keeper.counts())
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


def _now() -> int:
    return time.time_ns() // 1_000_000
