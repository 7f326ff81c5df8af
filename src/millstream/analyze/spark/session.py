"""The one Spark session of an `analyze` process."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import java_gateway
from pyspark.sql import SparkSession

from millstream.analyze.settings import AnalyzeSettings
from millstream.analyze.spark.callbacks import demand_token
from millstream.analyze.spark.driver import (
    class_archive,
    class_path,
    executor_options,
    java_options,
)
from millstream.analyze.spark.python_workers import python_of
from millstream.analyze.spark.state_memory import share_state_memory
from millstream.errors import MachineError
from millstream.runtime.jars import jars
from millstream.runtime.parent_death import die_with_parent

_CLASS_PATH = "spark.driver.extraClassPath"
_READING_TASKS = "2"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def start_session(
    settings: AnalyzeSettings, slots: int, name: str, scratch: Path | None = None
) -> SparkSession:
    """A session with room for `slots` tasks at once; its JVM ends when this process does.

    `scratch` is a folder for what Spark keeps on disk while it runs; it is emptied first.
    """
    # pyspark prints each error of a user's query as JSON on stderr besides raising it.
    for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    builder = SparkSession.builder.appName(name)
    chosen = configuration(settings, slots)
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)  # a JVM that was killed left its files there
        scratch.mkdir(mode=0o700, parents=True)
        chosen |= _kept_in(scratch.absolute(), chosen)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        with _child_of_ours(python_of(settings)):
            spark = builder.getOrCreate()
    except Exception as error:
        raise MachineError(
            f"Spark did not start: {str(error).splitlines()[0]}",
            remedy="`millstream doctor` checks Java and memory; the lines above tell more",
        ) from error
    spark.sparkContext.pythonExec = python_of(settings)
    demand_token(spark)
    if str(spark.sparkContext.master).startswith("local"):
        share_state_memory(spark)
    return spark


def _kept_in(scratch: Path, chosen: dict[str, str]) -> dict[str, str]:
    """What lets a session keep all its temporary files in a folder.

    Each JVM unpacks native libraries (15 MB). In the machine's own folder for temporary files,
    those of a killed one would stay for ever.
    """
    options = f'{chosen["spark.driver.extraJavaOptions"]} "-Djava.io.tmpdir={scratch}"'
    return {"spark.local.dir": str(scratch), "spark.driver.extraJavaOptions": options}


def configuration(settings: AnalyzeSettings, slots: int) -> dict[str, str]:
    """Spark's configuration: what suits a small machine, then what the user says."""
    files = [str(jar) for jar in jars("connector")]
    ours = {
        "spark.master": settings.spark_master or f"local[{slots}]",
        "spark.jars": ",".join(files),
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": java_options(
            class_archive().options(), settings.second_compiler
        ),
        "spark.executor.extraJavaOptions": executor_options(settings.second_compiler),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        # Spark's default is all task slots: reading a small table would take them from the queries
        # that are about to start. Large files are split further.
        "spark.default.parallelism": _READING_TASKS,
        # Streaming queries run without it; the planner must see the plans that they will run.
        "spark.sql.adaptive.enabled": "false",
        # The default, 32 ms, is most of the latency of a grouped query.
        "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "2",
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # One budget for all views; without it each state store takes what it likes.
        "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
        "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": _megabytes(
            settings.state_memory
        ),
        # Counting them takes a second look-up at every change, and nobody reads the count.
        "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
        # Real-time queries can't sort, and a grouped one in micro-batches need not.
        "spark.sql.execution.sortBeforeRepartition": "false",
        # Where a query reads the same grouping twice, as in a join with its own maximum, Spark
        # would shuffle once. Its watermark does not reach what reuses a shuffle: no row came.
        "spark.sql.exchange.reuse": "false",
        # A plan is fingerprinted by its text: none of it may be left out.
        "spark.sql.debug.maxToStringFields": "100000",
        "spark.sql.maxPlanStringLength": str(2**31 - 16),
    }
    theirs = dict(settings.spark)
    if not settings.spark_master:
        ours |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        theirs[_CLASS_PATH] = class_path(theirs.get(_CLASS_PATH, ""))
    return {**ours, **theirs}


def java_process(spark: SparkSession) -> int:
    """The process id of the session's JVM."""
    return int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]


def task_slots(spark: SparkSession) -> int:
    """How many tasks the session's executors run at once."""
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(True)
    return sum(int(executors.apply(i).totalCores()) for i in range(executors.size()))


@contextlib.contextmanager
def _child_of_ours(python: str) -> Iterator[None]:
    """Let the kernel kill the JVM when this process dies, however it dies.

    The JVM starts `python` where it needs an interpreter.

    By itself it ends when its standard input does, but takes seconds over that, in which its
    queries would write on beside those of the process that has taken our place. pyspark leaves no
    way in but its own name for Popen.
    """
    gateway: Any = java_gateway
    popen = gateway.Popen

    def start(command: list[str], **options: Any) -> Any:
        theirs, ours = options.pop("preexec_fn", None), die_with_parent()

        def before() -> None:
            if theirs is not None:
                theirs()
            ours()

        environment = {**(options.pop("env", None) or os.environ), "PYSPARK_PYTHON": python}
        return popen(command, preexec_fn=before, env=environment, **options)

    gateway.Popen = start
    try:
        yield
    finally:
        gateway.Popen = popen


def _megabytes(size: str) -> str:
    return str(int(size[:-1]) * (1024 if size.endswith("g") else 1))
