"""Decides how a view's query runs: its mode, its output mode and its lineage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyspark.sql import DataFrame

from millstream.analyze.lineage.lineage import TracedQuery
from millstream.analyze.plan import Lineage, RunMode
from millstream.analyze.planning.build import mistake
from millstream.analyze.spark.catalyst import Catalyst, name_of, nodes
from millstream.analyze.spark.realtime import (
    Stages,
    UnsupportedQuery,
    check_event_times,
    check_real_time,
    check_streaming,
)
from millstream.analyze.spark.remedies import remedy_for
from millstream.pipeline.model import View

_OUTPUT_MODES: tuple[Literal["update", "append"], ...] = ("update", "append")
_REORDERING = ("Deduplicate", "Distinct", "Repartition", "Join", "RebalancePartitions")


@dataclass(frozen=True, slots=True)
class ModeDecision:
    """How a query runs, and why."""

    mode: RunMode
    output_mode: Literal["update", "append"]
    reason: str
    stages: Stages | None  # None: in micro-batches


def decide_mode(view: View, frame: DataFrame) -> ModeDecision:
    """Real-time mode if the view and Spark allow it, else micro-batches; PipelineError if none."""
    if not frame.isStreaming:
        raise mistake(
            view,
            "does not use its input as a stream",
            "build the result from the DataFrame that the function is given",
        )
    looked_up = [name for name, how in view.reads.items() if how == "reference"]
    why_not = ""
    if view.mode == "auto" and looked_up:
        why_not = (
            f"it looks up {looked_up[0]}, of which a real-time query would see no change"
            " until its next checkpoint"
        )
    elif view.mode != "micro_batch":
        try:
            stages = check_real_time(frame)
        except UnsupportedQuery as unsupported:
            why_not = str(unsupported)
        else:
            reason = "asked for" if view.mode == "real_time" else "Spark can run it so"
            return ModeDecision("real_time", "update", reason, stages)
    if view.mode == "real_time":
        raise mistake(
            view,
            f"cannot run in real-time mode: {why_not}",
            'leave mode="real_time" out to let it run in micro-batches',
        )
    return _micro_batch(view, frame, why_not or "asked for")


def _micro_batch(view: View, frame: DataFrame, reason: str) -> ModeDecision:
    refusals = []
    for output_mode in _OUTPUT_MODES:
        try:
            check_streaming(frame, output_mode)
            check_event_times(frame, output_mode)
        except UnsupportedQuery as unsupported:
            refusals.append(str(unsupported))
            continue
        if output_mode == "append" and "joins" not in reason:
            reason += "; its rows come when they are final"
        return ModeDecision("micro_batch", output_mode, reason, None)
    why = next((each for each in refusals if remedy_for(view, each)), refusals[0])
    raise mistake(view, f"cannot run as a continuous query: {why}", remedy_for(view, why))


def decide_lineage(traced: TracedQuery, decision: ModeDecision) -> tuple[Lineage, str]:
    """The lineage that the rows keep in this mode, and why it is not a better one."""
    if traced.lineage == "revision":
        return "revision", ""
    reason = traced.why_no_position
    if traced.lineage == "position":
        stages = decision.stages
        if not (_may_reorder(traced.frame) if stages is None else stages.reorders):
            return "position", ""
        reason = "it shuffles rows over several tasks, which reorders them"
    return ("batch" if decision.mode == "micro_batch" else "none"), reason


def _may_reorder(frame: DataFrame) -> bool:
    if frame.sparkSession.conf.get("spark.sql.shuffle.partitions") == "1":
        return False
    plan = Catalyst.of(frame).analysed(frame)
    return any(name_of(node).startswith(_REORDERING) for node in nodes(plan))
