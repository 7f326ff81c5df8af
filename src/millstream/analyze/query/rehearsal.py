"""A first run of Spark, which writes an archive of the Java classes that every run loads."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from millstream.analyze.planning.planner import Planner
from millstream.analyze.query.queries import Queries
from millstream.analyze.settings import AnalyzeSettings
from millstream.analyze.spark.driver import java_options
from millstream.analyze.spark.session import start_session
from millstream.errors import MachineError
from millstream.log.connection import client_config
from millstream.log.consumer import bounds
from millstream.log.settings import LogSettings
from millstream.log.topic_names import stream_topic, view_topic
from millstream.pipeline.app import App
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.settings import Settings

_TIMEOUT = 300.0  # seconds, for a busy machine; usually it takes 20 in all


def rehearse(log: LogSettings, folder: Path, sharing: Sequence[str]) -> None:
    """Run views of each kind over a few events, in a JVM with these options, and end the JVM.

    For a process that does nothing else, because it cannot start another session.
    """
    app = _pipeline()
    options = {"spark.driver.extraJavaOptions": java_options(sharing)}
    settings = Settings(log=log, analyze=AnalyzeSettings(spark=options))
    ensure_topics(app, log)
    spark = start_session(settings.analyze, 24, app.name, folder / "spark")
    queries = Queries(spark, app, settings, folder / "checkpoints")
    queries.add_all(Planner(spark, app, settings).queries())
    _await_rows(app, log, queries)
    _silence(spark)
    queries.stop(patience=10)
    _end(spark)


def _pipeline() -> App:
    app = App("rehearsal")
    schema = "id LONG NOT NULL, city STRING, amount DOUBLE, at TIMESTAMP"
    app.stream("events", schema=schema, key="id", event_time="at", lateness="1 minute")
    sums = "count(*) AS n, sum(amount) AS amount"
    app.view("by_city", key=["city"], sql=f"SELECT city, {sums} FROM events GROUP BY city")
    minutes = f"SELECT window(at, '1 minute') AS window, {sums} FROM events GROUP BY 1"
    app.view("minutes", key=["window"], sql=minutes)
    app.view("batches", key=["window"], sql=minutes, mode="micro_batch")
    app.view("large", sql="SELECT id, upper(city) AS city FROM events WHERE amount > 1")
    return app


def _await_rows(app: App, log: LogSettings, queries: Queries) -> None:
    producer = Producer(client_config(log))
    for number in range(10):
        event = {"id": number, "city": "Bern", "amount": 2.5, "at": "2026-11-16T12:00:00Z"}
        producer.produce(stream_topic(app.name, "events"), json.dumps(event), str(number))
    producer.flush(10)
    deadline = time.monotonic() + _TIMEOUT
    missing = [view_topic(app.name, name) for name in app.views]
    while missing := [topic for topic in missing if _is_empty(log, topic)]:
        if time.monotonic() > deadline:
            raise MachineError(f"Spark wrote nothing to {missing[0]} in {_TIMEOUT:g} s")
        queries.tick()
        time.sleep(0.25)


def _is_empty(log: LogSettings, topic: str) -> bool:
    return not any(end for _, end in bounds(log, topic).values())


def _silence(spark: SparkSession) -> None:
    """Turn logging off: every task that is ended logs that at length."""
    log4j: Any = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    log4j.core.config.Configurator.setAllLevels("", log4j.Level.OFF)


def _end(spark: SparkSession) -> None:
    """End the JVM in an orderly way, so that it writes its class archive."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise MachineError(f"Spark's JVM did not end in {_TIMEOUT:g} s") from error
