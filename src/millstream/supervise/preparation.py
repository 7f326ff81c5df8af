"""Prepares a machine for a fast first start: fetches jars and creates class archives."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from millstream.analyze.spark import driver
from millstream.log import broker
from millstream.log.settings import LogSettings
from millstream.runtime.jars import jars


def fetch_jars(report: Callable[[str], None]) -> None:
    """Fetch the jars that are missing; JarError if that fails."""
    jars("broker", report)
    jars("connector", report)


def make_archives(report: Callable[[str], None]) -> None:
    """Create the class archives that are missing; MachineError if there is no Java.

    Without an archive everything runs, but starts more slowly. So a failure is reported and is no
    error.
    """
    kafka = broker.class_archive(report)
    spark = driver.class_archive()
    if kafka.find() and spark.find():
        return
    report("creating archives of Java's classes, so that Kafka and Spark start faster: a minute")
    try:
        with kafka.making() as for_kafka, spark.making() as for_spark:
            _rehearse(for_kafka, for_spark)
    except Exception as error:  # nothing depends on the archives
        report(f"cannot create them: {error}; Kafka and Spark start without them")


def _rehearse(for_kafka: list[str], for_spark: list[str]) -> None:
    """Run Kafka, and Spark on it, as a real system does."""
    from millstream.analyze.query.rehearsal import rehearse

    with (
        tempfile.TemporaryDirectory(prefix="millstream-", ignore_cleanup_errors=True) as folder,
        broker.Broker(Path(folder), sharing=for_kafka) as running,
    ):
        rehearse(LogSettings(bootstrap=running.bootstrap), Path(folder), for_spark)
