"""Starts one continuous query, after checks of its checkpoint and of its topics."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from millstream.analyze.planning.planned_query import PlannedQuery
from millstream.analyze.records.reader import kafka_options
from millstream.analyze.records.writer import encode
from millstream.analyze.recovery.checkpoint import (
    checkpoint_folder,
    clear,
    clear_unless_begun,
    prepare,
)
from millstream.analyze.recovery.checkpoint_notes import (
    CheckpointNotes,
    apply_notes,
    read_notes,
    write_notes,
)
from millstream.analyze.recovery.damage import CheckpointDamaged, check_checkpoint
from millstream.analyze.recovery.data_loss import add_lost, find_lost, skip_lost
from millstream.analyze.recovery.dead_letters import DeadLetterWriter
from millstream.analyze.recovery.progress import committed_offsets, initial_offsets
from millstream.analyze.recovery.shed_ranges import still_ahead
from millstream.analyze.spark.callbacks import start_callback_server
from millstream.analyze.spark.catalyst import named
from millstream.errors import ViewFailed
from millstream.log.consumer import bounds
from millstream.pipeline.app import App
from millstream.settings import Settings
from millstream.syntax.duration import parse_duration
from millstream.values.clock import now_ms
from millstream.values.hidden_columns import POSITION
from millstream.values.report import LostEvents

_log = logging.getLogger(__name__)
_MIN_COMMIT_INTERVAL = 5.0  # seconds, of a real-time query that may shed


class QueryStart(threading.Thread):
    """Starts one query in a thread of its own, because it may have to wait for Kafka."""

    def __init__(
        self, query: PlannedQuery, app: App, settings: Settings, checkpoints: Path
    ) -> None:
        super().__init__(name=f"start {query.view.name}", daemon=True)
        self._query, self._app, self._settings = query, app, settings
        self._checkpoints = checkpoints
        self.running: StreamingQuery | None = None
        self.checkpoint: Path | None = None
        self.topics: dict[str, str] = {}
        self.notes = CheckpointNotes()
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        plan, log = self._query.plan, self._settings.log
        try:
            folder = checkpoint_folder(self._checkpoints, plan)
            check_checkpoint(folder, read_notes(folder).begun)
            prepared = prepare(self._app, log, plan, self._checkpoints)
            self.checkpoint, self.topics = prepared.folder, prepared.ids
            self.notes = read_notes(self.checkpoint)
            if prepared.was_missing:
                self._note_missing_checkpoint(self.checkpoint)
            self._note_losses(self.checkpoint)
            clear_unless_begun(self.checkpoint)
            # A crash may have prevented that some were copied.
            DeadLetterWriter(self._app, log, plan.name, plan.generation).write(self.notes.broken)
            rows = apply_notes(self._query.rows, self._notes_ahead(self.checkpoint))
            self.running = _start(replace(self._query, rows=rows), self.checkpoint, self._settings)
        except CheckpointDamaged as damaged:
            self.error = damaged.of(plan.name)
        except Exception as error:  # reported by the view; the others go on
            self.error = error

    def _notes_ahead(self, checkpoint: Path) -> CheckpointNotes:
        """The notes without ranges that the query has passed, which would only grow its plan."""
        shed = still_ahead(self.notes.shed, committed_offsets(checkpoint).offsets)
        return msgspec.structs.replace(self.notes, shed=shed)

    def _note_missing_checkpoint(self, checkpoint: Path) -> None:
        """Log that the view starts from scratch; note how many events cannot be in it again."""
        plan, log = self._query.plan, self._settings.log
        oldest = {
            (topic, p): low for topic in plan.reads for p, (low, _) in bounds(log, topic).items()
        }
        gone = sum(oldest.values())
        what = (
            f"{gone:,} older events that retention deleted are not in it" if gone else "all of it"
        )
        _log.warning(
            "view %s had rows but no checkpoint in %s: it is computed again from what the log "
            "holds: %s",
            plan.name,
            checkpoint.parent,
            what,
        )
        if gone:
            moment = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
            warning = (
                f"its checkpoint was missing at {moment}, so it was computed again from what the "
                f"log holds; {what}. Restore the checkpoint from a backup, or accept the rows: "
                f"`millstream rebuild {plan.name}`"
            )
            self._write_notes(checkpoint, warning=warning)

    def _note_losses(self, checkpoint: Path) -> None:
        """Note the events that retention deleted unread; ViewFailed if the view stops for them."""
        read, known = committed_offsets(checkpoint), self.notes.lost
        if not (has_committed := bool(read.at)):
            read = initial_offsets(checkpoint)
        held = {topic: bounds(self._settings.log, topic) for topic in read.offsets}
        found = list(find_lost(read, held, now_ms()))
        lost = add_lost(known, found)
        new = [each for each in lost if each not in known]
        chosen = self._query.view.on_data_loss or self._settings.analyze.on_data_loss
        if new and chosen == "stop":
            raise _lost_events(self._query.view.name, new)
        for each in new:
            _log.error("view %s goes on without %s: gone from the log", self._query.view.name, each)
        if new:
            self._write_notes(checkpoint, lost=lost)
        if found and has_committed:
            skip_lost(checkpoint, found)
        elif found:
            clear(checkpoint)

    def _write_notes(self, checkpoint: Path, **changes: Any) -> None:
        self.notes = msgspec.structs.replace(self.notes, **changes)
        write_notes(checkpoint, self.notes)


def _start(query: PlannedQuery, folder: Path, settings: Settings) -> StreamingQuery:
    plan, options = query.plan, _sink_options(query, settings)
    rows = query.rows if plan.lineage == "batch" else encode(query.rows, plan.key)
    writer = (
        rows.writeStream.queryName(folder.parent.name)  # two of one view may run at once
        .outputMode(plan.output_mode)
        .option("checkpointLocation", str(folder))
    )
    if query.replays:
        writer = writer.trigger(availableNow=True)
    elif plan.mode == "real_time":
        interval = parse_duration(settings.analyze.checkpoint_interval).total_seconds()
        if plan.sheds_after_ms is not None:
            # A query that is restarted with another share goes back to its last commit.
            interval = min(interval, max(_MIN_COMMIT_INTERVAL, plan.sheds_after_ms / 2000))
        # pyspark's type stub lacks this trigger.
        writer = writer.trigger(realTime=f"{round(interval * 1000)} milliseconds")  # type: ignore[call-overload]
    if plan.lineage == "batch":
        start_callback_server(query.rows.sparkSession)
        return writer.foreachBatch(_write_batch(query, options)).start()
    return writer.format("kafka").options(**options).start()


def _sink_options(query: PlannedQuery, settings: Settings) -> dict[str, str]:
    return {
        **kafka_options(settings.log),
        "topic": query.plan.query_topic,
        "kafka.acks": "all",
        "kafka.enable.idempotence": "true",
        "kafka.linger.ms": "0",
        # Never give up on a record. If later ones arrive and it is then written again, readers
        # would take it for a repeat.
        "kafka.delivery.timeout.ms": str(2**31 - 1),
    }


def _write_batch(query: PlannedQuery, options: dict[str, str]) -> Callable[[DataFrame, int], None]:
    """A writer of batches. Their numbers are the positions, by which repeats are recognised."""
    name, key = query.plan.name, query.plan.key

    def write(rows: DataFrame, batch: int) -> None:
        # A repeated batch has the same rows, but in any order, so they are sorted.
        ordered = rows.coalesce(1).sortWithinPartitions(
            F.to_json(F.struct(*map(named, rows.columns)))
        )
        position = F.struct(
            F.lit(name).alias("source"),
            F.lit(0).alias("partition"),
            F.lit(batch).cast("bigint").alias("offset"),
            F.monotonically_increasing_id().alias("row"),
        )
        numbered = ordered.withColumn(POSITION, position)
        encode(numbered, key).write.format("kafka").options(**options).save()

    return write


def _lost_events(view: str, losses: list[LostEvents]) -> ViewFailed:
    return ViewFailed(
        f"view {view} stopped, because retention deleted {'; '.join(map(str, losses))}",
        remedy='let it go on without them by on_data_loss="continue", or compute it from what '
        f"the log holds: `millstream rebuild {view}`",
    )
