"""Starts continuous queries and keeps them up; nothing else does."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from py4j.protocol import Py4JNetworkError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from millstream.analyze.catalyst import named
from millstream.analyze.checkpoint import forget_others, prepare
from millstream.analyze.planner import Query, kafka_options
from millstream.analyze.progress import NOTHING, read_so_far
from millstream.analyze.reader import POSITION
from millstream.analyze.realtime import condense
from millstream.analyze.writer import encode
from millstream.app import App
from millstream.audit import ViewCounts
from millstream.duration import parse_duration
from millstream.settings import Settings

_LOGGER = logging.getLogger("millstream.analyze")
_STABLE_AFTER = 60.0  # seconds without a failure, after which earlier ones are forgotten
_LONGEST_WAIT = 30.0
_FAILURES = 5  # in a row, after which a view is called failed; it is tried on nevertheless

State = Literal["starting", "running", "restarting", "failed", "stopped"]


class Queries:
    """Every view's query in one session. Call `tick` a few times a second, from one thread."""

    def __init__(
        self,
        spark: SparkSession,
        app: App,
        settings: Settings,
        checkpoints: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark = spark
        self._app = app
        self._settings = settings
        self._checkpoints = checkpoints
        self._clock = clock
        self._kept: dict[str, _Kept] = {}

    def keep(self, queries: list[Query]) -> None:
        """The queries to keep up from now on; `tick` starts them."""
        forget_others(self._checkpoints, {query.view.name for query in queries})
        self._kept = {query.view.name: _Kept(query) for query in queries}

    def tick(self) -> None:
        """Start what is due, and see how the rest is doing."""
        for kept in self._kept.values():
            if kept.starting is not None:
                self._see_start(kept, kept.starting)
            elif kept.running is None:
                if self._clock() >= kept.due:
                    kept.starting = _Start(kept.query, self._app, self._settings, self._checkpoints)
            elif not kept.running.isActive:
                self._failed(kept, _why(kept.running))
            elif kept.state != "running" and _processes(self._spark, kept.running):
                kept.state, kept.error = "running", ""
                kept.since = self._clock()
            elif kept.state == "running" and self._clock() - kept.since > _STABLE_AFTER:
                kept.failures = 0

    def counts(self) -> dict[str, ViewCounts]:
        return {
            name: ViewCounts(
                state=kept.state,
                restarts=kept.restarts,
                error=kept.error,
                read=read.offsets,
                read_at=read.at,
            )
            for name, kept in self._kept.items()
            for read in [read_so_far(kept.checkpoint) if kept.checkpoint else NOTHING]
        }

    @property
    def settled(self) -> bool:
        """Whether each query runs, or has said why it does not."""
        return all(kept.state == "running" or kept.failures for kept in self._kept.values())

    def stop(self, patience: float) -> None:
        """End all queries; what takes longer than `patience` seconds is left to the JVM's end."""
        deadline = time.monotonic() + patience
        threads = []
        for kept in self._kept.values():
            kept.state, kept.due = "stopped", float("inf")
            threads.append(threading.Thread(target=kept.stop, daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _see_start(self, kept: _Kept, start: _Start) -> None:
        if start.is_alive():
            return
        kept.starting, kept.running, kept.checkpoint = None, start.running, start.checkpoint
        match start.error:
            case None:
                pass
            case Py4JNetworkError() | ConnectionError():  # the JVM is gone, and with it all queries
                raise start.error
            case _:
                self._failed(kept, condense(str(start.error) or type(start.error).__name__))

    def _failed(self, kept: _Kept, why: str) -> None:
        kept.running = None
        kept.failures += 1
        kept.restarts += 1
        kept.error = why
        kept.state = "failed" if kept.failures >= _FAILURES else "restarting"
        delay = min(_LONGEST_WAIT, 0.5 * 2 ** (kept.failures - 1))
        kept.due = self._clock() + delay
        _LOGGER.error("view %s stopped: %s; starting it again in %g s", kept.name, why, delay)


class _Kept:
    """One query and how it has done so far."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.name = query.view.name
        self.starting: _Start | None = None
        self.running: StreamingQuery | None = None
        self.checkpoint: Path | None = None  # the folder that it was started from
        self.state: State = "starting"
        self.failures = 0  # in a row
        self.restarts = 0
        self.error = ""
        self.due = 0.0  # when to start it
        self.since = 0.0  # when it was last seen to begin to run

    def stop(self) -> None:
        if self.starting is not None:
            self.starting.join()
            self.running = self.starting.running
        if self.running is not None:
            self.running.stop()


class _Start(threading.Thread):
    """The start of one query, beside the others': it waits for Kafka, which may be away."""

    def __init__(self, query: Query, app: App, settings: Settings, checkpoints: Path) -> None:
        super().__init__(name=f"start {query.view.name}", daemon=True)
        self._query, self._app, self._settings = query, app, settings
        self._checkpoints = checkpoints
        self.running: StreamingQuery | None = None
        self.checkpoint: Path | None = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            plan, log = self._query.plan, self._settings.log
            self.checkpoint = prepare(self._app, log, plan, self._checkpoints)
            self.running = _start(self._query, self.checkpoint, self._settings)
        except Exception as error:  # whatever it is, the neighbours go on
            self.error = error


def _start(query: Query, folder: Path, settings: Settings) -> StreamingQuery:
    plan, options = query.plan, _sink_options(query, settings)
    rows = query.rows if plan.lineage == "batch" else encode(query.rows, plan.key)
    writer = (
        rows.writeStream.queryName(query.view.name)
        .outputMode(plan.output_mode)
        .option("checkpointLocation", str(folder))
    )
    if plan.mode == "real_time":
        interval = parse_duration(settings.analyze.checkpoint_interval).total_seconds()
        # pyspark's stub lacks the trigger that pyspark has.
        writer = writer.trigger(realTime=f"{round(interval * 1000)} milliseconds")  # type: ignore[call-overload]
    if plan.lineage == "batch":
        return writer.foreachBatch(_write_batch(query, options)).start()
    return writer.format("kafka").options(**options).start()


def _sink_options(query: Query, settings: Settings) -> dict[str, str]:
    return {
        **kafka_options(settings.log),
        "topic": query.plan.topic,
        "kafka.acks": "all",
        "kafka.enable.idempotence": "true",
        "kafka.linger.ms": "0",
        # Never give a record up: the ones behind it might still get through, and whoever reads them
        # would then take the lost one, once it is written again, for a repeat.
        "kafka.delivery.timeout.ms": str(2**31 - 1),
    }


def _write_batch(query: Query, options: dict[str, str]) -> Callable[[DataFrame, int], None]:
    """Writes a batch with its number in the place of a position, so that a repeat is recognised."""
    name, key = query.plan.name, query.plan.key

    def write(rows: DataFrame, batch: int) -> None:
        # A repeated batch has the same rows, though not in the same order: so we put them in one.
        ordered = rows.coalesce(1).sortWithinPartitions(
            F.to_json(F.struct(*map(named, rows.columns)))
        )
        position = F.struct(
            F.lit(name).alias("source"),
            F.lit(0).alias("partition"),
            F.lit(batch).cast("bigint").alias("offset"),
            F.monotonically_increasing_id().alias("row"),
        )
        numbered = ordered.withColumn(POSITION, position)
        encode(numbered, key).write.format("kafka").options(**options).save()

    return write


def _processes(spark: SparkSession, query: StreamingQuery) -> bool:
    """Whether the query has got to work: tasks wait for events, or a batch is done."""
    if query.lastProgress is not None or query.status["message"] == "Waiting for data to arrive":
        return True
    tracker = spark.sparkContext.statusTracker()
    stages = [
        tracker.getStageInfo(stage)
        for job in tracker.getJobIdsForGroup(str(query.runId))
        if (info := tracker.getJobInfo(job)) is not None
        for stage in info.stageIds
    ]
    return bool(stages) and all(stage and stage.numActiveTasks for stage in stages)


def _why(query: StreamingQuery) -> str:
    """What ended a query, without the stages and stacks around it."""
    error = query.exception()
    if error is None:
        return "it ended by itself"
    text = str(error)
    text = text.split("terminated with exception: ", 1)[-1]
    if "Python Proxy" in text:  # what a batch's writing in Python raised, below its stack
        text = [text, *re.findall(r"^[\w.]+(?:Error|Exception): (.*)", text, re.MULTILINE)][-1]
    inner = re.search(r"executor \w+\): (?:[\w.$]+: )?(.*)", text)
    return condense(inner[1] if inner else text)
