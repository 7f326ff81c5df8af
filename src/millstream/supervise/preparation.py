"""What a first start would do, done ahead: jars are fetched, class archives are made."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from millstream.analyze.spark import driver
from millstream.log import broker
from millstream.log.settings import LogSettings
from millstream.runtime.jars import jars


def fetch_jars(report: Callable[[str], None]) -> None:
    """Fetch the jars, unless they are there; JarError."""
    jars("broker", report)
    jars("connector", report)


def make_archives(report: Callable[[str], None]) -> None:
    """Make the class archives, unless they are there; MachineError if there is no Java.

    Without an archive everything runs, only slower to start: that one cannot be made is told and is
    no error.
    """
    kafka = broker.class_archive(report)
    spark = driver.class_archive()
    if kafka.find() and spark.find():
        return
    report("making archives of Java's classes, by which Kafka and Spark start sooner: a minute")
    try:
        with kafka.making() as for_kafka, spark.making() as for_spark:
            _rehearse(for_kafka, for_spark)
    except Exception as error:  # whatever it is, nothing depends on them
        report(f"cannot make them: {error}; Kafka and Spark start without")


def _rehearse(for_kafka: list[str], for_spark: list[str]) -> None:
    """Run Kafka, and Spark on it, as every system does."""
    from millstream.analyze.query.rehearsal import rehearse

    with (
        tempfile.TemporaryDirectory(prefix="millstream-", ignore_cleanup_errors=True) as folder,
        broker.Broker(Path(folder), sharing=for_kafka) as running,
    ):
        rehearse(LogSettings(bootstrap=running.bootstrap), Path(folder), for_spark)
