"""The start of one continuous query: its checkpoint is checked, and what it goes on without."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from millstream.analyze.planning.planner import Query, kafka_options
from millstream.analyze.records.writer import encode
from millstream.analyze.recovery.aside import Aside
from millstream.analyze.recovery.checkpoint import checkpoint_of, clear, clear_unless_begun, prepare
from millstream.analyze.recovery.damage import Damaged, check_checkpoint
from millstream.analyze.recovery.loss import add_lost, find_lost, skip_lost
from millstream.analyze.recovery.notes import Notes, as_noted, read_notes, write_notes
from millstream.analyze.recovery.progress import first_offsets, read_so_far
from millstream.analyze.recovery.shed_ranges import still_ahead
from millstream.analyze.spark.callbacks import open_callbacks
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
_SHORTEST = 5.0  # seconds between two commits of a real-time query


class QueryStart(threading.Thread):
    """The start of one query, beside the others': it waits for Kafka, which may be away."""

    def __init__(self, query: Query, app: App, settings: Settings, checkpoints: Path) -> None:
        super().__init__(name=f"start {query.view.name}", daemon=True)
        self._query, self._app, self._settings = query, app, settings
        self._checkpoints = checkpoints
        self.running: StreamingQuery | None = None
        self.checkpoint: Path | None = None
        self.topics: dict[str, str] = {}
        self.notes = Notes()
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        plan, log = self._query.plan, self._settings.log
        try:
            folder = checkpoint_of(self._checkpoints, plan)
            check_checkpoint(folder, read_notes(folder).begun)
            prepared = prepare(self._app, log, plan, self._checkpoints)
            self.checkpoint, self.topics = prepared.folder, prepared.ids
            self.notes = read_notes(self.checkpoint)
            if prepared.lacks_checkpoint:
                self._mind_missing_checkpoint(self.checkpoint)
            self._mind_losses(self.checkpoint)
            clear_unless_begun(self.checkpoint)
            aside = Aside(self._app, log, plan.name, plan.generation)
            aside.put(self.notes.broken)  # what a crash may have kept from it
            rest = replace(self._query, rows=as_noted(self._query.rows, self._ahead()))
            self.running = _start(rest, self.checkpoint, self._settings)
        except Damaged as damaged:
            self.error = damaged.of(plan.name)
        except Exception as error:  # whatever it is, the neighbours go on
            self.error = error

    def _ahead(self) -> Notes:
        """The notes but what is behind the query: a plan is to hold no more than it needs."""
        assert self.checkpoint is not None
        shed = still_ahead(self.notes.shed, read_so_far(self.checkpoint).offsets)
        return msgspec.structs.replace(self.notes, shed=shed)

    def _mind_missing_checkpoint(self, checkpoint: Path) -> None:
        """Say that the view starts from scratch, and note which events cannot be in it again."""
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
            *(plan.name, checkpoint.parent, what),
        )
        if gone:
            moment = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
            warning = (
                f"its checkpoint was missing at {moment}, so it was computed again from what the "
                f"log holds; {what}. Put the checkpoint back from a backup, or accept the rows: "
                f"`millstream rebuild {plan.name}`"
            )
            self.notes = msgspec.structs.replace(self.notes, warning=warning)
            write_notes(checkpoint, self.notes)

    def _mind_losses(self, checkpoint: Path) -> None:
        """Note what retention took since the query left off; ViewFailed if it shall stop then."""
        read, known = read_so_far(checkpoint), self.notes.lost
        if not (has_committed := bool(read.at)):
            read = first_offsets(checkpoint)
        held = {topic: bounds(self._settings.log, topic) for topic in read.offsets}
        found = list(find_lost(read, held, now_ms()))
        lost = add_lost(known, found)
        new = [each for each in lost if each not in known]
        chosen = self._query.view.on_data_loss or self._settings.analyze.on_data_loss
        if new and chosen == "stop":
            raise _lost(self._query.view.name, new)
        for each in new:
            _log.error("view %s goes on without %s: gone from the log", self._query.view.name, each)
        if new:
            self.notes = msgspec.structs.replace(self.notes, lost=lost)
            write_notes(checkpoint, self.notes)
        if found and has_committed:
            skip_lost(checkpoint, found)
        elif found:
            clear(checkpoint)


def _start(query: Query, folder: Path, settings: Settings) -> StreamingQuery:
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
            # A query that is ended to take another share goes back to where it last committed.
            interval = min(interval, max(_SHORTEST, plan.sheds_after_ms / 2000))
        # pyspark's stub lacks the trigger that pyspark has.
        writer = writer.trigger(realTime=f"{round(interval * 1000)} milliseconds")  # type: ignore[call-overload]
    if plan.lineage == "batch":
        open_callbacks(query.rows.sparkSession)
        return writer.foreachBatch(_write_batch(query, options)).start()
    return writer.format("kafka").options(**options).start()


def _sink_options(query: Query, settings: Settings) -> dict[str, str]:
    return {
        **kafka_options(settings.log),
        "topic": query.plan.written,
        "kafka.acks": "all",
        "kafka.enable.idempotence": "true",
        "kafka.linger.ms": "0",
        # Never give a record up: the ones behind it might still get through, and whoever reads them
        # would then take the lost one, once it is written again, for a repeat.
        "kafka.delivery.timeout.ms": str(2**31 - 1),
    }


def _write_batch(query: Query, options: dict[str, str]) -> Callable[[DataFrame, int], None]:
    """Writes a batch with its number in the place of a position, so that a repeat is recognised."""
    name, key = query.plan.name, query.plan.key

    def write(rows: DataFrame, batch: int) -> None:
        # A repeated batch has the same rows, though not in the same order: so we put them in one.
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


def _lost(view: str, losses: list[LostEvents]) -> ViewFailed:
    return ViewFailed(
        f"view {view} stopped, because retention took {'; '.join(map(str, losses))}",
        remedy='let it go on without them by on_data_loss="continue", or compute it from what '
        f"there is: `millstream rebuild {view}`",
    )
