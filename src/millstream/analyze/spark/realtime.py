"""Spark's own check for real-time mode, asked without starting a query and without Kafka.

Spark checks the logical plan when a query starts and the physical plan at each batch. Here the
physical plan is made as a batch would make it, with a source in memory in the place of each topic.
"""

from __future__ import annotations

import re
import tempfile
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
    renamed,
    replace_leaves,
)

_STREAMING = "org.apache.spark.sql.execution.streaming"
_V2 = "org.apache.spark.sql.execution.datasources.v2"
# Any duration does; one beyond an int, because py4j would pass a smaller one on as an Integer.
_DURATION = 1 << 40


class Refused(Exception):
    """Spark's reason not to run a query in this mode, in plain words."""


@dataclass(frozen=True, slots=True)
class Stages:
    """What a query's physical plan needs at once."""

    topics: tuple[str, ...]  # one per scan: each of its partitions takes a slot
    shuffle_tasks: tuple[int, ...]  # one per exchange

    @property
    def reorders(self) -> bool:
        """Whether rows of one source partition may come out in another order."""
        return any(tasks > 1 for tasks in self.shuffle_tasks)


def check_streaming(frame: DataFrame, output_mode: str) -> None:
    """Whether Spark runs this as a stream at all; Refused says why not."""
    catalyst = Catalyst.of(frame)
    checker = catalyst.module("org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker")
    with _refusing():
        checker.checkForStreaming(catalyst.analysed(frame), _mode(catalyst, output_mode))


def check_event_times(frame: DataFrame, output_mode: str) -> None:
    """Refused if rows that are joined have two event times, which Spark says only when it runs."""
    catalyst = Catalyst.of(frame)
    patterns = catalyst.module("org.apache.spark.sql.catalyst.trees.TreePattern")
    if not catalyst.analysed(frame).containsPattern(patterns.JOIN()):
        return
    try:
        _physical(catalyst, catalyst.analysed(frame), _mode(catalyst, output_mode))
    except PySparkException as error:
        if (why := in_plain_words(str(error))) == remedies.TWO_TIMES:
            raise Refused(why) from error


def check_real_time(frame: DataFrame) -> Stages:
    """What the query takes in real-time mode; Refused if Spark does not run it so."""
    catalyst = Catalyst.of(frame)
    plan, update = catalyst.analysed(frame), _mode(catalyst, "update")
    checker = catalyst.module("org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker")
    allowlist = catalyst.module(f"{_STREAMING}.runtime.RealTimeModeAllowlist")
    sources = [leaf for leaf in leaves(plan) if name_of(leaf) == "StreamingRelationV2"]
    if any(one.equals(other) for i, one in enumerate(sources) for other in sources[:i]):
        raise Refused("it reads the same input twice")
    with _refusing():
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
        dry = replace_leaves(catalyst, plan, lambda leaf: _in_memory(catalyst, leaf, stream))
        run, nothing = jvm.java.util.UUID.randomUUID(), jvm.java.util.HashMap()
        metadata = catalyst.java(f"{_STREAMING}.checkpointing.OffsetSeqMetadata")
        settings = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(nothing)
        with tempfile.TemporaryDirectory(prefix="millstream-plan-") as folder:
            execution = catalyst.java(f"{_STREAMING}.runtime.IncrementalExecution")(
                *(catalyst.session, dry, output_mode, folder, run, run, 0, catalyst.none),
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
        # A table that is looked up; to plan for it would ask Kafka for its size.
        empty = catalyst.frame(leaf).sparkSession.createDataFrame([], catalyst.frame(leaf).schema)
        return renamed(catalyst, catalyst.analysed(empty), leaf)
    if name_of(leaf) != "StreamingRelationV2":
        return leaf
    jvm, none = catalyst.jvm, catalyst.none
    options = jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap.empty()
    scan = stream.logicalPlan().table().newScanBuilder(options).build()
    relation = catalyst.java(f"{_V2}.StreamingDataSourceV2Relation")(
        *(leaf.table(), leaf.output(), none, none, leaf.extraOptions(), "nowhere"),
        catalyst.some(_DURATION),
        leaf.sourceIdentifyingName(),
    )
    start = catalyst.some(stream.initialOffset())
    return catalyst.java(f"{_V2}.StreamingDataSourceV2ScanRelation")(
        relation, scan, leaf.output(), stream, start, none
    )


def _stages(physical: Any, sources: list[LogicalPlan]) -> Stages:
    exchanges = []
    pending = [physical]
    while pending:
        node = pending.pop()
        pending.extend(items(node.children()))
        if name_of(node) == "ShuffleExchangeExec":
            exchanges.append(int(node.outputPartitioning().numPartitions()))
    topics = tuple(str(source.extraOptions().get("subscribe")) for source in sources)
    return Stages(topics, tuple(exchanges))


class _refusing:
    """Turns Spark's refusal into ours."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, PySparkException):
            raise Refused(in_plain_words(str(error))) from error


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


def in_plain_words(message: str) -> str:
    """Why Spark refused, for someone who knows their query but not Spark's operators."""
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
