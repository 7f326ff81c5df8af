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
from millstream.analyze.spark.callbacks import require_token
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
_READ_TASKS = "2"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def start_session(
    settings: AnalyzeSettings, slots: int, name: str, scratch: Path | None = None
) -> SparkSession:
    """A session that runs `slots` tasks at once; its JVM ends when this process does.

    `scratch`: a folder for Spark's temporary files; it is emptied first.
    """
    # pyspark also prints each error of a user's query as JSON on stderr.
    for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    builder = SparkSession.builder.appName(name)
    chosen = configuration(settings, slots)
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)  # files of a killed JVM
        scratch.mkdir(mode=0o700, parents=True)
        chosen |= _scratch_options(scratch.absolute(), chosen)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        with _bound_jvm(python_of(settings)):
            spark = builder.getOrCreate()
    except Exception as error:
        raise MachineError(
            f"Spark did not start: {str(error).splitlines()[0]}",
            remedy="`millstream doctor` checks Java and memory; see the lines above",
        ) from error
    spark.sparkContext.pythonExec = python_of(settings)
    require_token(spark)
    if str(spark.sparkContext.master).startswith("local"):
        share_state_memory(spark)
    return spark


def _scratch_options(scratch: Path, chosen: dict[str, str]) -> dict[str, str]:
    """The options that put all temporary files of a session in a folder.

    Each JVM unpacks native libraries (15 MB). In the machine's temporary folder, those of a killed
    JVM would stay forever.
    """
    options = f'{chosen["spark.driver.extraJavaOptions"]} "-Djava.io.tmpdir={scratch}"'
    return {"spark.local.dir": str(scratch), "spark.driver.extraJavaOptions": options}


def configuration(settings: AnalyzeSettings, slots: int) -> dict[str, str]:
    """Spark's configuration: values for a small machine, overridden by the user's."""
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
        # With Spark's default, reading a small table would take all task slots from the queries
        # that are about to start. Large files are split further.
        "spark.default.parallelism": _READ_TASKS,
        # Streaming queries run without it, and the planner must see the same plans.
        "spark.sql.adaptive.enabled": "false",
        # The default, 32 ms, would be most of the latency of a grouped query.
        "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "2",
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # One budget for all views; without it each state store has its own.
        "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
        "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": _megabytes(
            settings.state_memory
        ),
        # The count would cost a second look-up per change, and nobody reads it.
        "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
        # Real-time queries can't sort, and grouped micro-batch queries need not.
        "spark.sql.execution.sortBeforeRepartition": "false",
        # If a query uses the same grouping twice, as in a join with its own maximum, Spark would
        # shuffle once. Its watermark does not reach the reused shuffle: no row would come.
        "spark.sql.exchange.reuse": "false",
        # A view's generation is a hash of the plan's text, which must be complete.
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
    """The number of tasks that the session's executors run at once."""
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(True)
    return sum(int(executors.apply(i).totalCores()) for i in range(executors.size()))


@contextlib.contextmanager
def _bound_jvm(python: str) -> Iterator[None]:
    """Lets the kernel kill the JVM when this process dies, and makes `python` its interpreter.

    By itself the JVM ends seconds after its standard input closes. Meanwhile its queries would
    write beside those of the process that replaces this one. pyspark has no hook for this, so its
    Popen is replaced.
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
