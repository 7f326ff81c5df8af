"""Finds poison events, on which a query fails, and leaves them out of the query's input.

A query that fails because of an event fails again at each start. So the same query runs in batches
over the records that it has not committed, and bisects them to the single records that fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millstream.analyze.history.history import LogRange, as_batch
from millstream.analyze.spark.catalyst import (
    Catalyst,
    LogicalPlan,
    replace_leaves,
    streamed_topic,
)
from millstream.analyze.spark.python_workers import missing_dependency
from millstream.analyze.spark.realtime import condense
from millstream.values.report import BrokenEvent

# Standard classes of SQLSTATE: cardinality, data, constraint, a called function, raise_error; and
# Spark's errors for exceptions in a user's Python.
_DATA_ERROR = re.compile(r"SQLSTATE: (?:2[123]\w{3}|39\w{3}|P0001)\b|PythonException|UDF_USER_CODE")
_BATCH_RECORDS = 200_000  # records in one attempt
_MAX_FOUND = 100  # events that one search finds


class RecordRange(NamedTuple):
    """Records of one partition: start <= offset < stop."""

    topic: str
    partition: int
    start: int
    stop: int


Offsets = Mapping[str, Mapping[int, tuple[int, int]]]  # topic → partition → start, stop
# Runs the query over these records; returns why it fails, or an empty text.
Attempt = Callable[[RecordRange], str]


def is_data_error(text: str) -> bool:
    """Whether a query failed because of an event, and not because of its environment."""
    return bool(_DATA_ERROR.search(text)) and not missing_dependency(text)


def without_events(frame: DataFrame, broken: Iterable[BrokenEvent]) -> DataFrame:
    """The query without those events of its input; its checkpoint still fits."""
    offsets: dict[str, dict[int, list[int]]] = {}
    for event in broken:
        offsets.setdefault(event.topic, {}).setdefault(event.partition, []).append(event.offset)
    if not offsets:
        return frame
    catalyst = Catalyst.of(frame)

    def filtered(leaf: LogicalPlan) -> LogicalPlan:
        if (topic := streamed_topic(leaf)) not in offsets:
            return leaf
        source = catalyst.frame(leaf)
        for partition, excluded in offsets[topic].items():
            is_excluded = (F.col("partition") == partition) & F.col("offset").isin(excluded)
            source = source.filter(~is_excluded)
        return catalyst.analysed(source)

    return catalyst.frame(replace_leaves(catalyst, catalyst.analysed(frame), filtered))


def find_poison(
    pending: Iterable[RecordRange], attempt: Attempt
) -> Iterator[tuple[RecordRange, str]]:
    """The single records on which the query fails, with the reasons, lowest first per partition.

    It finds at most `_MAX_FOUND`, and stops after the first batch of a partition that has some:
    the query can then go on, and fails again if there are more.
    """
    for records in pending:
        for start in range(records.start, records.stop, _BATCH_RECORDS):
            batch = records._replace(start=start, stop=min(start + _BATCH_RECORDS, records.stop))
            found = False
            for number, one in enumerate(_bisect(batch, attempt)):
                found = True
                yield one
                if number + 1 == _MAX_FOUND:
                    return
            if found:
                break


def _bisect(
    records: RecordRange, attempt: Attempt, fails: bool = False
) -> Iterator[tuple[RecordRange, str]]:
    """`fails`: it is known that the query fails on one of the records."""
    if records.stop - records.start == 1:
        if reason := attempt(records):
            yield records, reason
        return
    if not fails and not attempt(records):
        return
    middle = (records.start + records.stop) // 2
    found = False
    for one in _bisect(records._replace(stop=middle), attempt):
        found = True
        yield one
    yield from _bisect(records._replace(start=middle), attempt, fails=not found)


def batch_attempt(frame: DataFrame, held: Offsets, options: Mapping[str, str]) -> Attempt:
    """An attempt that runs a streaming query in a batch; `held`: the bounds of all its topics."""

    def attempt(records: RecordRange) -> str:
        bounded = as_batch(frame, LogRange(_only(held, records)), options)
        try:
            bounded.write.format("noop").mode("overwrite").save()
        except PySparkException as error:
            if is_data_error(str(error)):
                return failure_reason(str(error))
            raise
        return ""

    return attempt


def failure_reason(text: str) -> str:
    """The cause in Spark's text of a failed task, without stages and stacks."""
    inner = re.search(r"executor \w+\): (?:[\w.$]+: )?(.*)", text)
    raised = re.findall(r"^\s*(?:[\w.]+\.)?(\w+(?:Error|Exception): .*)", text, re.MULTILINE)
    if "Traceback (most recent call last)" in text and raised:
        return condense(raised[-1])
    return condense(inner[1] if inner else text)


def _only(held: Offsets, records: RecordRange) -> Offsets:
    """The records, and nothing of any other partition."""
    return {
        topic: {
            partition: (records.start, records.stop)
            if (topic, partition) == (records.topic, records.partition)
            else (end, end)
            for partition, (_, end) in partitions.items()
        }
        for topic, partitions in held.items()
    }
