"""Changes the share of its input that a query reads, from an offset that is stored first.

Rows that the query has written must stay as they are. So the offset is after everything that it can
have read. In micro-batches that is the end of the newest planned batch, which the query repeats if
it was not committed. In real-time mode nothing says how far a running batch is: there it is the
log's end, once the query and the last of its tasks have ended.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millstream.analyze.planning.planned_query import PlannedQuery
from millstream.analyze.recovery.checkpoint_notes import CheckpointNotes, write_notes
from millstream.analyze.recovery.progress import planned_offsets
from millstream.analyze.recovery.shed_ranges import ShedRange, change_share
from millstream.errors import ViewFailed
from millstream.log.consumer import bounds
from millstream.log.settings import LogSettings
from millstream.values.clock import now_ms

_TASKS_END = 30.0  # seconds
Held = dict[str, dict[int, tuple[int, int]]]  # topic → partition → oldest, end


class ShareChange(threading.Thread):
    """Stops a query and stores the share for its next start, while other queries run on."""

    def __init__(
        self,
        query: PlannedQuery,
        streams: tuple[str, ...],
        running: StreamingQuery,
        checkpoint: Path,
        notes: CheckpointNotes,
        log: LogSettings,
        share: int,
    ) -> None:
        super().__init__(name=f"share {query.view.name}", daemon=True)
        self._plan, self._spark = query.plan, query.rows.sparkSession
        self._streams, self._running = streams, running
        self._checkpoint, self._log, self.share = checkpoint, log, share
        self.notes = notes
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self._running.stop()
            if self._plan.mode == "real_time":
                _await_tasks(self._spark, self._running)
            held = {topic: bounds(self._log, topic) for topic in self._streams}
            self._store(held)
        except Exception as error:  # the query starts again with its former share
            self.error = error

    def _store(self, held: Held) -> None:
        now = now_ms()
        kept, before = _still_held(self.notes.shed, held)
        shed = change_share(kept, self._reached(held), self.share, now)
        before += self.notes.shed_before
        noted = msgspec.structs.replace(self.notes, shed=shed, shed_before=before)
        write_notes(self._checkpoint, noted)
        self.notes = noted

    def _reached(self, held: Held) -> dict[str, dict[int, int]]:
        if self._plan.mode == "real_time":
            return {
                topic: {partition: end for partition, (_, end) in partitions.items()}
                for topic, partitions in held.items()
            }
        batch = planned_offsets(self._checkpoint)
        return {
            topic: {
                partition: max(oldest, batch.get(topic, {}).get(str(partition), oldest))
                for partition, (oldest, _) in partitions.items()
            }
            for topic, partitions in held.items()
        }


def _await_tasks(spark: SparkSession, query: StreamingQuery) -> None:
    """Wait for the tasks of a stopped query: until they have ended, they may read on."""
    tracker, deadline = spark.sparkContext.statusTracker(), time.monotonic() + _TASKS_END
    stages = {
        stage
        for job in tracker.getJobIdsForGroup(str(query.runId))
        if (info := tracker.getJobInfo(job)) is not None
        for stage in info.stageIds
    }
    while any((at := tracker.getStageInfo(each)) and at.numActiveTasks for each in stages):
        if time.monotonic() > deadline:
            raise ViewFailed(f"its tasks have not ended within {_TASKS_END:g} s")
        time.sleep(0.05)


def _still_held(ranges: tuple[ShedRange, ...], held: Held) -> tuple[list[ShedRange], int]:
    """The ranges of which the log still has records, and how many events the others left out."""
    kept, before = [], 0
    for each in ranges:
        oldest, _ = held.get(each.topic, {}).get(each.partition, (0, 0))
        if each.stop is not None and each.stop <= min(oldest, each.counted):
            before += each.left_out
        else:
            kept.append(each)
    return kept, before
