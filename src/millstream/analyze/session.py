"""The one Spark session of an `analyze` process."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from millstream.analyze.settings import AnalyzeSettings
from millstream.errors import MachineError
from millstream.log.jars import jars

_LOG4J = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} spark %p %c{1}: %m%n%ex{5}
# Said at every start, and nothing that a user could act on.
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.resolve.name = org.apache.spark.sql.execution.streaming.runtime.ResolveWriteToStream
logger.resolve.level = error
logger.consumer.name = org.apache.kafka.clients.consumer.internals
logger.consumer.level = error
logger.configs.name = org.apache.kafka.clients.consumer.ConsumerConfig
logger.configs.level = error
logger.admin.name = org.apache.kafka.clients.admin.AdminClientConfig
logger.admin.level = error
"""
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def start_session(
    settings: AnalyzeSettings, slots: int, name: str, scratch: Path | None = None
) -> SparkSession:
    """A session with room for `slots` tasks at once; its JVM ends when this process does.

    `scratch` is a folder for what Spark keeps on disk while it runs; it is emptied first.
    """
    # pyspark prints each error of a user's query as JSON on stderr besides raising it.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    builder = SparkSession.builder.appName(name)
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)  # a JVM that was killed left its files there
        scratch.mkdir(parents=True)
        builder = builder.config("spark.local.dir", str(scratch.absolute()))
    for key, value in configuration(settings, slots).items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        raise MachineError(
            f"Spark did not start: {str(error).splitlines()[0]}",
            remedy="`millstream doctor` checks Java and memory; the lines above tell more",
        ) from error


def configuration(settings: AnalyzeSettings, slots: int) -> dict[str, str]:
    """Spark's configuration: what suits a small machine, then what the user says."""
    files = [str(jar) for jar in jars("connector")]
    ours = {
        "spark.master": settings.spark_master or f"local[{slots}]",
        "spark.jars": ",".join(files),
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": f"{_java_options()} -Dlog4j2.configurationFile={_log4j()}",
        "spark.executor.extraJavaOptions": _java_options(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        # Streaming queries run without it; the planner must see the plans that they will run.
        "spark.sql.adaptive.enabled": "false",
        # The default, 32 ms, is most of the latency of a grouped query.
        "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "2",
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # Real-time queries can't sort, and a grouped one in micro-batches need not.
        "spark.sql.execution.sortBeforeRepartition": "false",
        # A plan is fingerprinted by its text: none of it may be left out.
        "spark.sql.debug.maxToStringFields": "100000",
        "spark.sql.maxPlanStringLength": str(2**31 - 16),
    }
    if not settings.spark_master:
        ours |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return {**ours, **settings.spark}


def java_process(spark: SparkSession) -> int:
    """The process id of the session's JVM."""
    return int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]


def task_slots(spark: SparkSession) -> int:
    """How many tasks the session's executors run at once."""
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(True)
    return sum(int(executors.apply(i).totalCores()) for i in range(executors.size()))


def _java_options() -> str:
    # The second compiler eats a core for minutes before it pays; on a small machine it never does.
    return "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def _log4j() -> Path:
    file = Path(tempfile.gettempdir()) / f"millstream-log4j2-{os.getuid()}.properties"
    fresh = file.with_suffix(f".{os.getpid()}")
    fresh.write_text(_LOG4J)
    fresh.replace(file)
    return file
