"""Events on which a query fails: found one by one, and left out of what the query reads.

A query that fails for a reason of the data's fails again at each start. The same query in batch
over the records that it has not committed shows which of them it is: halves of them are tried until
one record alone makes it fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millstream.analyze.history.history import Past, over_past
from millstream.analyze.spark.catalyst import (
    Catalyst,
    LogicalPlan,
    leaves,
    name_of,
    replace_leaves,
)
from millstream.analyze.spark.python_workers import blame_environment
from millstream.analyze.spark.realtime import condense
from millstream.values.report import BrokenEvent

# Standard classes of SQLSTATE: cardinality, data, constraint, a called function, raise_error; and
# what Spark says when a user's Python raised.
_OF_DATA = re.compile(r"SQLSTATE: (?:2[123]\w{3}|39\w{3}|P0001)\b|PythonException|UDF_USER_CODE")
_AT_ONCE = 200_000  # records in one try
_AT_MOST = 100  # broken events that one search looks for


class Pending(NamedTuple):
    """Records of one partition: start <= offset < stop."""

    topic: str
    partition: int
    start: int
    stop: int


Offsets = Mapping[str, Mapping[int, tuple[int, int]]]  # topic → partition → start, stop
# Why the query fails on these records; empty if it does not.
Try = Callable[[Pending], str]


def is_of_data(text: str) -> bool:
    """Whether a query failed for what it read rather than for what it ran on."""
    return bool(_OF_DATA.search(text)) and not blame_environment(text)


def without(frame: DataFrame, broken: Iterable[BrokenEvent]) -> DataFrame:
    """The same query over the same topics but those events; its checkpoint fits it as before."""
    offsets: dict[str, dict[int, list[int]]] = {}
    for event in broken:
        offsets.setdefault(event.topic, {}).setdefault(event.partition, []).append(event.offset)
    if not offsets:
        return frame
    catalyst = Catalyst.of(frame)

    def spare(leaf: LogicalPlan) -> LogicalPlan:
        if topic_of(leaf) not in offsets:
            return leaf
        source = catalyst.frame(leaf)
        for partition, those in offsets[topic_of(leaf)].items():
            one_of_them = (F.col("partition") == partition) & F.col("offset").isin(those)
            source = source.filter(~one_of_them)
        return catalyst.analysed(source)

    return catalyst.frame(replace_leaves(catalyst, catalyst.analysed(frame), spare))


def find_broken(pending: Iterable[Pending], fails: Try) -> Iterator[Pending]:
    """The records on which the query fails, each alone, lowest first per partition.

    Not more than `_AT_MOST`, and none from beyond the first stretch that has some: the query can go
    on by then, and fails again if there are more. Each call of `fails` runs the query.
    """
    for all_of_it in pending:
        for start in range(all_of_it.start, all_of_it.stop, _AT_ONCE):
            stretch = all_of_it._replace(start=start, stop=min(start + _AT_ONCE, all_of_it.stop))
            found = False
            for number, one in enumerate(_bisect(stretch, fails)):
                found = True
                yield one
                if number + 1 == _AT_MOST:
                    return
            if found:
                break


def _bisect(stretch: Pending, fails: Try, known: bool = False) -> Iterator[Pending]:
    """`known`: it is certain that the stretch has a record on which the query fails."""
    is_one = stretch.stop - stretch.start == 1
    if not (known and not is_one) and not fails(stretch):
        return
    if is_one:
        yield stretch
        return
    middle = (stretch.start + stretch.stop) // 2
    found = False
    for one in _bisect(stretch._replace(stop=middle), fails):
        found = True
        yield one
    yield from _bisect(stretch._replace(start=middle), fails, known=not found)


def trying(frame: DataFrame, held: Offsets, options: Mapping[str, str]) -> Try:
    """Runs a streaming query in batch over some records; `held` are the ends of all it reads."""

    def fails(pending: Pending) -> str:
        bounded = over_past(frame, Past(_just(held, pending)), options)
        try:
            bounded.write.format("noop").mode("overwrite").save()
        except PySparkException as error:
            if is_of_data(str(error)):
                return reason_of(str(error))
            raise
        return ""

    return fails


def topics_of(frame: DataFrame) -> list[str]:
    """The topics that a query reads as streams."""
    catalyst = Catalyst.of(frame)
    found = (topic_of(leaf) for leaf in leaves(catalyst.analysed(frame)))
    return list(dict.fromkeys(topic for topic in found if topic))


def topic_of(leaf: LogicalPlan) -> str:
    if name_of(leaf) != "StreamingRelationV2":
        return ""
    return str(leaf.extraOptions().get("subscribe"))


def reason_of(text: str) -> str:
    """What made a task fail, without the stages and stacks around it."""
    inner = re.search(r"executor \w+\): (?:[\w.$]+: )?(.*)", text)
    raised = re.findall(r"^\s*(?:[\w.]+\.)?(\w+(?:Error|Exception): .*)", text, re.MULTILINE)
    if "Traceback (most recent call last)" in text and raised:
        return condense(raised[-1])
    return condense(inner[1] if inner else text)


def _just(held: Offsets, pending: Pending) -> Offsets:
    """Nothing of any partition but what is pending of that one."""
    return {
        topic: {
            partition: (pending.start, pending.stop)
            if (topic, partition) == (pending.topic, pending.partition)
            else (end, end)
            for partition, (_, end) in partitions.items()
        }
        for topic, partitions in held.items()
    }
