"""Reads a fixed range of the log in a batch, in the place of a stream."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from millstream.analyze.settings import AnalyzeSettings
from millstream.analyze.spark.catalyst import (
    Catalyst,
    LogicalPlan,
    items,
    replace_leaves,
    streamed_topic,
)
from millstream.analyze.spark.session import start_session
from millstream.log.consumer import bounds
from millstream.log.search import offsets_since
from millstream.log.settings import LogSettings

OffsetRange = Mapping[int, tuple[int, int]]  # partition → first offset, offset after the last


@dataclass(frozen=True, slots=True)
class LogRange:
    """A range of offsets in each partition of some topics. Later records are not in it."""

    offsets: Mapping[str, OffsetRange]

    @property
    def records(self) -> int:
        """The number of records, at most: compaction may have left fewer."""
        return sum(end - start for span in self.offsets.values() for start, end in span.values())

    @property
    def is_whole(self) -> bool:
        """Whether it has every record that was ever written to the topics."""
        return all(start == 0 for span in self.offsets.values() for start, _ in span.values())


def find_log_range(
    log: LogSettings, topics: Iterable[str], since: int | None = None, until: int | None = None
) -> LogRange:
    """What the topics hold now, or of that `since` <= time < `until`, in milliseconds. Blocks."""
    return LogRange({topic: _range(log, topic, since, until) for topic in topics})


def _range(log: LogSettings, topic: str, since: int | None, until: int | None) -> OffsetRange:
    held = bounds(log, topic)
    starts = {} if since is None else offsets_since(log, {topic: since})
    ends = {} if until is None else offsets_since(log, {topic: until})
    found = {}
    for partition, (low, high) in held.items():
        start = min(max(low, starts.get((topic, partition), low)), high)
        found[partition] = (start, max(start, min(high, ends.get((topic, partition), high))))
    return found


def read_batch(
    spark: SparkSession,
    topic: str,
    options: Mapping[str, str],
    offsets: OffsetRange,
    *,
    headers: bool,
) -> DataFrame:
    """A topic's committed records in the range, without those that retention deletes meanwhile."""
    starts = {str(partition): start for partition, (start, _) in offsets.items()}
    ends = {str(partition): end for partition, (_, end) in offsets.items()}
    return (
        spark.read.format("kafka")
        .options(**options)
        .option("subscribe", topic)
        .option("startingOffsets", json.dumps({topic: starts}))
        .option("endingOffsets", json.dumps({topic: ends}))
        .option("includeHeaders", str(headers).lower())
        .option("kafka.isolation.level", "read_committed")
        .option("failOnDataLoss", "false")
        .load()
    )


def as_batch(rows: DataFrame, log_range: LogRange, options: Mapping[str, str]) -> DataFrame:
    """A continuous query's rows, computed in a batch over a range of the log.

    The plan is the live one, with its filters and hidden columns: only the sources differ.
    """
    catalyst = Catalyst.of(rows)

    def bounded(leaf: LogicalPlan) -> LogicalPlan:
        if not (topic := streamed_topic(leaf)):
            return leaf
        headers = str(leaf.extraOptions().get("includeHeaders")) == "true"
        offsets = log_range.offsets[topic]
        read = read_batch(rows.sparkSession, topic, options, offsets, headers=headers)
        return catalyst.renamed(catalyst.analysed(read), items(leaf.output()))

    return catalyst.frame(replace_leaves(catalyst, catalyst.analysed(rows), bounded))


@contextlib.contextmanager
def local_session(settings: AnalyzeSettings, name: str) -> Iterator[SparkSession]:
    """A session on this machine for one command; the process's active one if there is one."""
    if (active := SparkSession.getActiveSession()) is not None:
        yield active
        return
    local = settings.model_copy(update={"spark_master": ""})
    spark = start_session(local, slots=max(2, os.cpu_count() or 2), name=name)
    try:
        yield spark
    finally:
        spark.stop()
