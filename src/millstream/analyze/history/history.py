"""The log up to a fixed place, read whole and once: what batch queries have in a stream's place."""

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
    name_of,
    renamed,
    replace_leaves,
)
from millstream.analyze.spark.session import start_session
from millstream.log.consumer import bounds, offsets_at
from millstream.log.settings import LogSettings

Span = Mapping[int, tuple[int, int]]  # per partition the first offset, and the one after the last


@dataclass(frozen=True, slots=True)
class Past:
    """Of each topic what is in it up to a moment; later records change nothing about it."""

    spans: Mapping[str, Span]

    @property
    def records(self) -> int:
        """How many records it has at most: compaction may have left fewer."""
        return sum(end - start for span in self.spans.values() for start, end in span.values())

    @property
    def is_whole(self) -> bool:
        """Whether it has every record that was ever written to the topics."""
        return all(start == 0 for span in self.spans.values() for start, _ in span.values())


def take_past(
    log: LogSettings, topics: Iterable[str], since: int | None = None, until: int | None = None
) -> Past:
    """What the topics hold now: of `since` <= time < `until` if given, in milliseconds. Blocks."""
    return Past({topic: _span(log, topic, since, until) for topic in topics})


def _span(log: LogSettings, topic: str, since: int | None, until: int | None) -> Span:
    held = bounds(log, topic)
    starts = {} if since is None else offsets_at(log, topic, since)
    ends = {} if until is None else offsets_at(log, topic, until)
    span = {}
    for partition, (low, high) in held.items():
        start = min(max(low, starts.get(partition, low)), high)
        span[partition] = (start, max(start, min(high, ends.get(partition, high))))
    return span


def past_records(
    spark: SparkSession, topic: str, options: Mapping[str, str], span: Span, *, headers: bool
) -> DataFrame:
    """A topic's records within the span; what retention takes meanwhile is left out.

    What a transaction wrote that came to nothing, such as a killed keeper's, was never there.
    """
    starts = {str(partition): start for partition, (start, _) in span.items()}
    ends = {str(partition): end for partition, (_, end) in span.items()}
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


def over_past(rows: DataFrame, past: Past, options: Mapping[str, str]) -> DataFrame:
    """A continuous query's rows as a batch gives them: the same plan over what the past has.

    The plan that runs live is taken, with its filters and hidden columns, so that nothing but the
    reading differs.
    """
    catalyst = Catalyst.of(rows)

    def bounded(leaf: LogicalPlan) -> LogicalPlan:
        if name_of(leaf) != "StreamingRelationV2":
            return leaf
        topic = str(leaf.extraOptions().get("subscribe"))
        headers = str(leaf.extraOptions().get("includeHeaders")) == "true"
        read = past_records(rows.sparkSession, topic, options, past.spans[topic], headers=headers)
        return renamed(catalyst, catalyst.analysed(read), leaf)

    return catalyst.frame(replace_leaves(catalyst, catalyst.analysed(rows), bounded))


@contextlib.contextmanager
def small_session(settings: AnalyzeSettings, name: str) -> Iterator[SparkSession]:
    """A session of this machine's own for one command; the process's own if it has one."""
    if (active := SparkSession.getActiveSession()) is not None:
        yield active
        return
    local = settings.model_copy(update={"spark_master": ""})
    spark = start_session(local, slots=max(2, os.cpu_count() or 2), name=name)
    try:
        yield spark
    finally:
        spark.stop()
