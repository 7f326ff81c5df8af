"""One view's query: the phase that it is in, and its history so far."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millstream.analyze.planning.planned_query import PlannedQuery
from millstream.analyze.query.query_start import QueryStart
from millstream.analyze.recovery.checkpoint_notes import CheckpointNotes
from millstream.analyze.recovery.poison import failure_reason
from millstream.analyze.recovery.poison_search import PoisonSearch
from millstream.analyze.shedding.share_change import ShareChange

State = Literal["starting", "running", "restarting", "failed", "stopped", "replayed"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """It is started when it is due."""

    due: float


@dataclass(frozen=True, slots=True)
class Starting:
    start: QueryStart


@dataclass(frozen=True, slots=True)
class Running:
    query: StreamingQuery
    since: float | None = None  # when it was first seen to process events; None: not yet


@dataclass(frozen=True, slots=True)
class Searching:
    """It failed on an event, which is searched for; it is started when it is due after that."""

    search: PoisonSearch
    due: float


@dataclass(frozen=True, slots=True)
class ChangingShare:
    """It is stopped to take another share of its input."""

    change: ShareChange


@dataclass(frozen=True, slots=True)
class Replayed:
    """It has read up to the log's end, as it should."""


@dataclass(frozen=True, slots=True)
class Stopped:
    pass


Phase = Waiting | Starting | Running | Searching | ChangingShare | Replayed | Stopped


def end_phase(phase: Phase) -> None:
    """End whatever runs in the phase. Blocks until it has ended."""
    match phase:
        case Starting(start):
            start.join()
            if start.running is not None:
                start.running.stop()
        case Running(query):
            query.stop()
        case Searching(search):
            search.cancel()
            search.join()
        case ChangingShare(change):
            change.join()


@dataclass(slots=True)
class ViewQuery:
    """A query, its phase and the facts about its runs."""

    query: PlannedQuery
    phase: Phase = Waiting(0.0)
    # The state to report until the query processes events.
    pending_state: Literal["starting", "restarting", "failed"] = "starting"
    error: str = ""
    failures: int = 0  # in a row
    slot_waits: int = 0  # in a row
    restarts: int = 0
    checkpoint: Path | None = None  # of the last start
    notes: CheckpointNotes = field(default_factory=CheckpointNotes)
    topics: dict[str, str] = field(default_factory=dict)  # that it uses: name → id
    topics_since: float = 0.0  # when they had these ids; monotonic clock
    lost_before: int = -1  # lost events that were known when it last failed on data loss
    dropped: int = 0  # rows that Spark dropped by its watermark, as far as was seen
    dropped_checked: float = 0.0  # when that was last checked

    @property
    def name(self) -> str:
        return self.query.view.name

    @property
    def state(self) -> State:
        """The state that users see."""
        match self.phase:
            case Running(since=float()):
                return "running"
            case Replayed():
                return "replayed"
            case Stopped():
                return "stopped"
            case _:
                return self.pending_state

    @property
    def running(self) -> StreamingQuery | None:
        return self.phase.query if isinstance(self.phase, Running) else None


def is_processing(spark: SparkSession, query: StreamingQuery) -> bool:
    """Whether the query processes events: its tasks wait for some, or a batch is done."""
    if query.lastProgress is not None or query.status["message"] == "Waiting for data to arrive":
        return True
    tracker = spark.sparkContext.statusTracker()
    stages = [
        tracker.getStageInfo(stage)
        for job in tracker.getJobIdsForGroup(str(query.runId))
        # Jobs that read reference data end before the query processes events.
        if (info := tracker.getJobInfo(job)) is not None and info.status == "RUNNING"
        for stage in info.stageIds
    ]
    return bool(stages) and all(stage and stage.numActiveTasks for stage in stages)


def exception_text(query: StreamingQuery) -> str:
    """The message of a query's exception, followed by those of its causes."""
    error = query.exception()
    if error is None:
        return "it ended by itself"
    texts, cause = [str(error)], query._jsq.exception().get().getCause()
    while cause is not None:
        texts.append(f"Caused by: {cause}")
        cause = cause.getCause()
    return "\n".join(texts)


def exception_reason(text: str) -> str:
    """The reason in the text of a query's exception, without stages and stacks."""
    text = text.split("terminated with exception: ", 1)[-1]
    if "Python Proxy" in text:  # foreachBatch raised; its exception is below the stack
        text = [text, *re.findall(r"^[\w.]+(?:Error|Exception): (.*)", text, re.MULTILINE)][-1]
    return failure_reason(text)
