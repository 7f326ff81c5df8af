"""Runs Spark's own checks of streaming queries, without starting a query and without Kafka.

Spark checks the logical plan when a query starts and the physical plan at each batch. Here the
physical plan is made as for a batch, with an in-memory source in the place of each topic.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from millstream.analyze.spark import remedies
from millstream.analyze.spark.catalyst import (
    Catalyst,
    LogicalPlan,
    items,
    leaves,
    name_of,
    nodes,
    replace_leaves,
    streamed_topic,
)

_STREAMING = "org.apache.spark.sql.execution.streaming"
_V2 = "org.apache.spark.sql.execution.datasources.v2"
# Any duration works. It is beyond an int, because py4j would pass a smaller one as an Integer.
_DURATION = 1 << 40


class UnsupportedQuery(Exception):
    """Why Spark does not run a query in this mode, in plain words."""


@dataclass(frozen=True, slots=True)
class Stages:
    """The parts of a physical plan that run at the same time."""

    topics: tuple[str, ...]  # one per scan: each partition takes a slot
    shuffle_tasks: tuple[int, ...]  # one per exchange

    @property
    def reorders(self) -> bool:
        """Whether rows of one source partition may change their order."""
        return any(tasks > 1 for tasks in self.shuffle_tasks)


def check_streaming(frame: DataFrame, output_mode: str) -> None:
    """UnsupportedQuery if Spark does not run the query as a stream at all."""
    catalyst = Catalyst.of(frame)
    checker = catalyst.module("org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker")
    with _refusals():
        checker.checkForStreaming(catalyst.analysed(frame), _mode(catalyst, output_mode))


def check_event_times(frame: DataFrame, output_mode: str) -> None:
    """UnsupportedQuery if joined rows have two event times: Spark rejects them only at run time."""
    catalyst = Catalyst.of(frame)
    if not catalyst.contains(catalyst.analysed(frame), "JOIN"):
        return
    try:
        _physical(catalyst, catalyst.analysed(frame), _mode(catalyst, output_mode))
    except PySparkException as error:
        if (why := explain_refusal(str(error))) == remedies.TWO_TIMES:
            raise UnsupportedQuery(why) from error


def check_real_time(frame: DataFrame) -> Stages:
    """The stages of the query in real-time mode; UnsupportedQuery if Spark does not run it so."""
    catalyst = Catalyst.of(frame)
    plan, update = catalyst.analysed(frame), _mode(catalyst, "update")
    checker = catalyst.module("org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker")
    allowlist = catalyst.module(f"{_STREAMING}.runtime.RealTimeModeAllowlist")
    sources = [leaf for leaf in leaves(plan) if streamed_topic(leaf)]
    if any(one.equals(other) for i, one in enumerate(sources) for other in sources[:i]):
        raise UnsupportedQuery("it reads the same input twice")
    with _refusals():
        checker.checkForStreaming(plan, update)
        checker.checkAdditionalRealTimeModeConstraints(plan, update)
        physical = _physical(catalyst, plan, update)
        allowlist.checkAllowedPhysicalOperator(physical, True)
    return _stages(physical, sources)


def _mode(catalyst: Catalyst, output_mode: str) -> Any:
    modes = catalyst.java("org.apache.spark.sql.streaming.OutputMode")
    return modes.Update() if output_mode == "update" else modes.Append()


def _physical(catalyst: Catalyst, plan: LogicalPlan, output_mode: Any) -> Any:
    jvm = catalyst.jvm
    integers = jvm.org.apache.spark.sql.Encoders.INT()
    memory = catalyst.java(f"{_STREAMING}.sources.LowLatencyMemoryStream")
    stream = memory.apply(catalyst.session, 1, integers)
    try:
        unconnected = replace_leaves(
            catalyst, plan, lambda leaf: _in_memory(catalyst, leaf, stream)
        )
        run, nothing = jvm.java.util.UUID.randomUUID(), jvm.java.util.HashMap()
        metadata = catalyst.java(f"{_STREAMING}.checkpointing.OffsetSeqMetadata")
        settings = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(nothing)
        with tempfile.TemporaryDirectory(prefix="millstream-plan-") as folder:
            execution = catalyst.java(f"{_STREAMING}.runtime.IncrementalExecution")(
                catalyst.session,
                unconnected,
                output_mode,
                folder,
                run,
                run,
                0,
                catalyst.none,
                metadata.apply(0, 0, settings),
                catalyst.module(f"{_STREAMING}.runtime.NoOpWatermarkPropagator"),
                True,
                jvm.scala.collection.mutable.HashMap(),
                jvm.scala.collection.mutable.HashMap(),
                catalyst.module("org.apache.spark.sql.execution.CommandExecutionMode").ALL(),
                False,
                True,
            )
            return execution.executedPlan()
    finally:
        stream.stop()


def _in_memory(catalyst: Catalyst, leaf: LogicalPlan, stream: Any) -> LogicalPlan:
    if name_of(leaf) == "LogicalRelation" and name_of(leaf.relation()) == "KafkaRelation":
        # Reference data. To plan for it, Spark would ask Kafka for its size.
        empty = catalyst.frame(leaf).sparkSession.createDataFrame([], catalyst.frame(leaf).schema)
        return catalyst.renamed(catalyst.analysed(empty), items(leaf.output()))
    if not streamed_topic(leaf):
        return leaf
    jvm, none = catalyst.jvm, catalyst.none
    options = jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap.empty()
    scan = stream.logicalPlan().table().newScanBuilder(options).build()
    relation = catalyst.java(f"{_V2}.StreamingDataSourceV2Relation")(
        leaf.table(),
        leaf.output(),
        none,
        none,
        leaf.extraOptions(),
        "nowhere",
        catalyst.some(_DURATION),
        leaf.sourceIdentifyingName(),
    )
    start = catalyst.some(stream.initialOffset())
    return catalyst.java(f"{_V2}.StreamingDataSourceV2ScanRelation")(
        relation, scan, leaf.output(), stream, start, none
    )


def _stages(physical: Any, sources: list[LogicalPlan]) -> Stages:
    shuffle_tasks = [
        int(node.outputPartitioning().numPartitions())
        for node in nodes(physical)
        if name_of(node) == "ShuffleExchangeExec"
    ]
    return Stages(tuple(map(streamed_topic, sources)), tuple(shuffle_tasks))


@contextmanager
def _refusals() -> Iterator[None]:
    """Turns Spark's refusal into an UnsupportedQuery."""
    try:
        yield
    except PySparkException as error:
        raise UnsupportedQuery(explain_refusal(str(error))) from error


_NOT_BROADCAST = "it joins reference data that is not broadcast; wrap that in F.broadcast(…)"
_OPERATORS = {
    "BatchEvalPythonExec": "it calls a Python function (UDF)",
    "ArrowEvalPythonExec": "it calls a Python function (UDF)",
    "StreamingSymmetricHashJoinExec": "it joins two streams",
    "SortMergeJoinExec": _NOT_BROADCAST,
    "ShuffledHashJoinExec": _NOT_BROADCAST,
    "StreamingDeduplicateWithinWatermarkExec": "it uses dropDuplicatesWithinWatermark",
    "SessionWindowStateStoreRestoreExec": "it uses session windows",
    "MapInPandasExec": "it uses mapInPandas",
    "MapInArrowExec": "it uses mapInArrow",
    "TransformWithStateInPySparkExec": "it uses transformWithState in Python",
    "FlatMapGroupsInPandasWithStateExec": "it uses applyInPandasWithState",
    "SortExec": "it sorts",
}
_PHRASES = {
    "More than one event time columns": remedies.TWO_TIMES,
    "Sorting is not supported": remedies.SORTS,
    "Non-time-based windows": remedies.WINDOW_FUNCTION,
    "NON_TIME_WINDOW": remedies.WINDOW_FUNCTION,
    "Distinct aggregations": remedies.DISTINCT,
    "Limits are not supported": remedies.LIMITS,
    "Streaming query is not allowed in subquery": remedies.SUBQUERY,
    "LeftAnti joins": remedies.ANTI,
    "not supported without a watermark": remedies.OUTER,
    "session window": remedies.SESSIONS,
    "STATEFUL_OPERATORS_BEFORE_UNION": "it puts grouped or deduplicated results together",
    "global watermark": remedies.GROUPED_TWICE,
    "Multiple streaming aggregations": remedies.GROUPED_TWICE,
    "between two streaming": "it joins two streams",
}


def explain_refusal(message: str) -> str:
    """Why Spark refused a query, in words for users who do not know Spark's operators."""
    operators = re.findall(r"org\.apache\.spark\.sql\.[\w.]*\.(\w+Exec)\b", message)
    if operators:
        reasons = [_OPERATORS.get(o, f"Spark's real-time mode has no {o}") for o in operators]
        return "; ".join(dict.fromkeys(reasons))
    for phrase, reason in _PHRASES.items():
        if phrase in message:
            return reason
    return condense(message)


def condense(message: str) -> str:
    """Spark's message without its error class, state code, plan and stack."""
    text = message.split("JVM stacktrace")[0]
    text = re.split(r";\s*(?:line \d+ pos \d+)?;?\s*\n|\n\s*[~'!+]|\n== ", text)[0]
    text = re.sub(r"^\[[A-Z_0-9.]+\]\s*", "", text.strip())
    text = re.sub(r"\s*SQLSTATE: \w+.*", "", text, flags=re.DOTALL)
    return " ".join(text.split()).rstrip(";. ")
