"""The JVM of Spark's driver: its options and its class archive.

A module of its own, so that callers need not import pyspark, which takes a second.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from millstream.analyze.spark.bind_address import bound_jar
from millstream.runtime.class_archive import ClassArchive
from millstream.runtime.java import find_java

COLLECTOR = "-XX:+UseSerialGC"
# With the first compiler alone, Java reserves 48 MB for compiled code instead of 240 MB. Spark with
# a few queries needs more: Java would discard methods and compile them again and again.
FIRST_COMPILER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
# The second compiler uses a core for minutes before it pays off: that core must be free.
_CORES_FOR_SECOND_COMPILER = 4
_LOG4J = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} spark %p %c{1}: %m%n%ex{5}
# Logged at every start; a user can do nothing about them.
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.utils.name = org.apache.spark.util.Utils
logger.utils.level = error
logger.conf.name = org.apache.spark.SparkConf
logger.conf.level = error
logger.streaming.name = org.apache.spark.sql.execution.streaming.runtime
logger.streaming.level = error
logger.state.name = org.apache.spark.sql.execution.streaming.state
logger.state.level = error
logger.kafka.name = org.apache.spark.sql.kafka010
logger.kafka.level = error
logger.clients.name = org.apache.kafka.clients
logger.clients.level = error
"""


def spark_jars() -> Path:
    """The folder with Spark's own jars."""
    spark = os.environ.get("SPARK_HOME")
    if not spark:
        package = importlib.util.find_spec("pyspark")
        spark = str(Path(package.origin).parent) if package and package.origin else ""
    return Path(spark, "jars")


def class_archive(*, make: bool = True) -> ClassArchive:
    """The archive for the driver's JVM.

    Its class path begins with a jar of ours. With `make=False` that jar is not made; OSError if it
    does not exist.
    """
    folder = spark_jars()
    first = bound_jar(folder, make=make)
    files = [*([first] if first else []), *sorted(folder.glob("*.jar"))]
    return ClassArchive("spark", find_java(), files)


def class_path(theirs: str) -> str:
    """The driver's class path before Spark's own jars: our jar, then the user's."""
    ours = bound_jar(spark_jars())
    return os.pathsep.join([*([str(ours)] if ours else []), *([theirs] if theirs else [])])


def java_options(sharing: Sequence[str], second_compiler: bool | None = None) -> str:
    """The options of the driver's JVM, including those of a class archive.

    `second_compiler`: None decides by the number of this machine's cores.
    """
    if second_compiler is None:
        second_compiler = (os.cpu_count() or 1) >= _CORES_FOR_SECOND_COMPILER
    compilers = [] if second_compiler else [FIRST_COMPILER]
    quoted = [f'"{option}"' for option in sharing]
    return " ".join([COLLECTOR, *compilers, f"-Dlog4j2.configurationFile={_log4j()}", *quoted])


def executor_options(second_compiler: bool | None) -> str:
    """The options of executors' JVMs: with both compilers, unless `second_compiler` is False."""
    return f"{COLLECTOR} {FIRST_COMPILER}" if second_compiler is False else COLLECTOR


def _log4j() -> Path:
    file = Path(tempfile.gettempdir()) / f"millstream-log4j2-{os.getuid()}.properties"
    fresh = file.with_suffix(f".{os.getpid()}")
    fresh.write_text(_LOG4J)
    fresh.replace(file)
    return file
