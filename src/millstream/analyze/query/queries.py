"""Starts continuous queries and keeps them up; nothing else does."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millstream.analyze.monitor.topic_watch import TopicWatch
from millstream.analyze.planning.planner import Query
from millstream.analyze.query.query_start import QueryStart
from millstream.analyze.recovery.checkpoint import (
    checkpoint_of,
    topic_changed,
)
from millstream.analyze.recovery.damage import Damaged, blame_state
from millstream.analyze.recovery.loss import is_of_loss
from millstream.analyze.recovery.notes import Notes, read_notes, write_notes
from millstream.analyze.recovery.poison import is_of_data, reason_of
from millstream.analyze.recovery.progress import (
    NOTHING,
    dropped_by_watermark,
    read_so_far,
)
from millstream.analyze.recovery.search import Search
from millstream.analyze.recovery.shed_ranges import WHOLE, count_on, share_of, since
from millstream.analyze.shedding.share_change import ShareChange
from millstream.analyze.spark.python_workers import blame_environment
from millstream.analyze.spark.realtime import condense
from millstream.errors import TopicChanged
from millstream.log.topic_names import stream_topic
from millstream.pipeline.app import App
from millstream.settings import Settings
from millstream.values.report import ViewCounts

_log = logging.getLogger(__name__)
_STABLE_AFTER = 60.0  # seconds without a failure, after which earlier ones are forgotten
_LONGEST_WAIT = 30.0
_AFTERMATH = 3.0  # seconds in which the tasks of a stopped query still tell that they were ended
_ASK_EVERY = 5.0
_LOSSES = 10  # that are reported
_COUNTED = 100_000  # events that were shed, counted at a time
_NO_SLOTS = "CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT"
_WAIT_FOR_SLOTS = 0.5  # seconds
_WAITS = 60  # for task slots, after which it is a failure
_FAILURES = 5  # in a row, after which a view is called failed; it is tried on nevertheless

State = Literal["starting", "running", "restarting", "failed", "stopped", "replayed"]


class Queries:
    """Every view's query in one session. Call `tick` a few times a second, from one thread."""

    def __init__(
        self,
        spark: SparkSession,
        app: App,
        settings: Settings,
        checkpoints: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark = spark
        self._app = app
        self._settings = settings
        self._checkpoints = checkpoints
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._topics = TopicWatch(settings.log)

    def keep(self, queries: list[Query]) -> None:
        """The queries to keep up from now on; `tick` starts them."""
        self._kept = {}
        for query in queries:
            self.add(query)

    def add(self, query: Query) -> None:
        """Keep up this one too, from now on; one of the same view must have ended."""
        kept = self._kept[query.view.name] = _Kept(query)
        with contextlib.suppress(Damaged):  # its start says so
            kept.notes = read_notes(checkpoint_of(self._checkpoints, query.plan))

    def drop(self, view: str) -> None:
        """End a view's query; it takes a moment, for which this does not wait."""
        if (kept := self._kept.pop(view, None)) is not None:
            threading.Thread(target=self._stop_quietly, args=(kept.stop,), daemon=True).start()

    def _stop_quietly(self, stop: Callable[[], None]) -> None:
        # Every task that is ended tells so at length; nothing of it is news.
        context = self._spark.sparkContext
        context.setLogLevel("OFF")
        stop()
        time.sleep(_AFTERMATH)
        context.setLogLevel("WARN")

    def take_over(self, view: str, others: Queries) -> None:
        """Keep up the query of the view that `others` has kept, in the place of ours."""
        self.drop(view)
        self._kept[view] = others._kept.pop(view)

    @property
    def views(self) -> set[str]:
        """Whose queries are kept up."""
        return set(self._kept)

    def state_of(self, view: str) -> tuple[State, str]:
        """How a view's query is doing, and why it is not if so."""
        kept = self._kept[view]
        return kept.state, kept.error

    def turn(self, view: str, share: int) -> None:
        """Let a running query take that share of its input, in thousandths, from now on.

        It is started anew for that, and its rows up to there stay as they are. Doesn't block.
        """
        kept = self._kept[view]
        if kept.state != "running" or kept.running is None or kept.checkpoint is None:
            return
        streams = {stream_topic(self._app.name, each) for each in self._app.streams}
        kept.turn = ShareChange(
            *(kept.query, tuple(streams & set(kept.query.plan.reads)), kept.running),
            *(kept.checkpoint, kept.notes),
            *(self._settings.log, share),
        )
        kept.running, kept.state = None, "starting"

    def share_of(self, view: str) -> tuple[int, int] | None:
        """What share a running query takes, and since which offsets, added up; None: none runs."""
        kept = self._kept.get(view)
        if kept is None or kept.state != "running" or kept.query.replays:
            return None
        shed = kept.notes.shed
        return share_of(shed), since(shed)

    def tick(self) -> None:
        """Start what is due, and see how the rest is doing."""
        self._topics.follow({topic for kept in self._kept.values() for topic in kept.topics})
        for kept in self._kept.values():
            if kept.state == "replayed":
                continue
            if kept.starting is not None:
                self._see_start(kept, kept.starting)
            elif kept.search is not None:
                self._see_search(kept, kept.search)
            elif kept.turn is not None:
                self._see_turn(kept, kept.turn)
            elif kept.running is None:
                if self._clock() >= kept.due:
                    kept.starting = QueryStart(
                        kept.query, self._app, self._settings, self._checkpoints
                    )
            elif changed := self._topics.changed(kept.topics, kept.topics_since):
                self._topic_changed(kept, kept.running, changed)
            elif not kept.running.isActive and kept.query.replays and not kept.running.exception():
                kept.state, kept.running = "replayed", None
            elif not kept.running.isActive:
                self._ended(kept, _text(kept.running))
            elif kept.state != "running" and _processes(self._spark, kept.running):
                kept.state, kept.error, kept.waits = "running", "", 0
                kept.since = self._clock()
            elif kept.state == "running":
                self._mind_begun(kept)
                self._mind_dropped(kept, kept.running)
                if self._clock() - kept.since > _STABLE_AFTER:
                    kept.failures = 0

    def counts(self) -> dict[str, ViewCounts]:
        reads = {
            name: read_so_far(kept.checkpoint) if kept.checkpoint else NOTHING
            for name, kept in self._kept.items()
        }
        for name, kept in self._kept.items():
            if kept.notes.shed and kept.turn is None:
                shed = count_on(kept.notes.shed, reads[name].offsets, _COUNTED)
                kept.notes = msgspec.structs.replace(kept.notes, shed=shed)
        return {
            name: ViewCounts(
                state="running" if kept.state == "replayed" else kept.state,
                restarts=kept.restarts,
                error=kept.error,
                read=read.offsets,
                read_at=read.at,
                broken=len(kept.notes.broken),
                newest_broken=kept.notes.broken[-1] if kept.notes.broken else None,
                lost=sum(map(len, kept.notes.lost)),
                losses=list(kept.notes.lost[-_LOSSES:]),
                dropped=kept.dropped,
                warning=kept.notes.warning,
                shed=kept.notes.shed_before + sum(each.left_out for each in kept.notes.shed),
                share=share_of(kept.notes.shed) / WHOLE,
            )
            for name, kept in self._kept.items()
            for read in [reads[name]]
        }

    @property
    def settled(self) -> bool:
        """Whether each query runs, or has said why it does not."""
        return all(kept.state == "running" or kept.failures for kept in self._kept.values())

    def stop(self, patience: float) -> None:
        """End all queries; what takes longer than `patience` seconds is left to the JVM's end."""
        self._topics.close()
        deadline = time.monotonic() + patience
        threads = []
        for kept in self._kept.values():
            kept.state, kept.due = "stopped", float("inf")
            threads.append(threading.Thread(target=kept.stop, daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _see_start(self, kept: _Kept, start: QueryStart) -> None:
        if start.is_alive():
            return
        kept.starting, kept.running, kept.checkpoint = None, start.running, start.checkpoint
        kept.topics, kept.topics_since = start.topics, time.monotonic()
        kept.notes = start.notes
        match start.error:
            case None:
                pass
            case Py4JNetworkError() | ConnectionError():  # the JVM is gone, and with it all queries
                raise start.error
            case TopicChanged():
                self._failed(kept, str(start.error), "failed")
            case _:
                self._failed(kept, condense(str(start.error) or type(start.error).__name__))

    def _topic_changed(
        self, kept: _Kept, running: StreamingQuery, changed: Mapping[str, bool]
    ) -> None:
        """End a query whose topic was deleted; its next start looks at it, as every start does."""
        threading.Thread(target=self._stop_quietly, args=(running.stop,), daemon=True).start()
        topic, exists = next(iter(changed.items()))
        kept.topics = {}
        self._failed(kept, str(topic_changed(kept.query.plan, topic, exists=exists)), "failed")

    def _ended(self, kept: _Kept, text: str) -> None:
        """A query ended by itself: start it again, after a look at what it failed on."""
        lost = sum(map(len, kept.notes.lost))
        if is_of_loss(text) and lost != kept.lost:
            # Its start says what is lost. Not later, because the slower it is, the more that is.
            kept.running, kept.state, kept.due, kept.lost = None, "restarting", 0.0, lost
            kept.restarts += 1
            return
        if _NO_SLOTS in text and kept.waits < _WAITS:
            # Other jobs, such as those that read reference data, have them for a moment.
            kept.running, kept.state, kept.due = None, "starting", self._clock() + _WAIT_FOR_SLOTS
            kept.waits += 1
            return
        why = blame_state(kept.name, text) or blame_environment(text) or _why(text)
        self._failed(kept, why)
        if kept.checkpoint is not None and is_of_data(text):
            kept.search = Search(kept.query, self._app, self._settings.log, kept.checkpoint)

    def _see_search(self, kept: _Kept, search: Search) -> None:
        if search.is_alive():
            return
        kept.search = None
        match search.error:
            case None if search.found:
                kept.notes, kept.failures, kept.due = search.notes, 0, 0.0
            case None:
                kept.error = f"{kept.error}; no event fails by itself, so none can be set aside"
            case Py4JNetworkError() | ConnectionError():
                raise search.error
            case error:
                _log.error("view %s: %s", kept.name, condense(str(error)))

    def _see_turn(self, kept: _Kept, turn: ShareChange) -> None:
        if turn.is_alive():
            return
        kept.turn, kept.notes, kept.due = None, turn.notes, 0.0
        match turn.error:
            case None if turn.share < WHOLE:
                words = f"takes {turn.share / WHOLE:.1%} of its input from here on"
                _log.warning("view %s cannot keep up, and %s", kept.name, words)
            case None:
                _log.warning("view %s takes all of its input again", kept.name)
            case Py4JNetworkError() | ConnectionError():
                raise turn.error
            case error:
                _log.error("view %s cannot shed: %s", kept.name, condense(str(error)))

    def _failed(self, kept: _Kept, why: str, state: State | None = None) -> None:
        kept.running = None
        kept.failures += 1
        kept.restarts += 1
        is_news = why != kept.error
        kept.error = why
        kept.state = state or ("failed" if kept.failures >= _FAILURES else "restarting")
        delay = min(_LONGEST_WAIT, 0.5 * 2 ** (kept.failures - 1))
        kept.due = self._clock() + delay
        level = logging.ERROR if is_news else logging.DEBUG
        _log.log(level, "view %s stopped: %s; starting it again in %g s", kept.name, why, delay)

    def _mind_dropped(self, kept: _Kept, query: StreamingQuery) -> None:
        # Spark remembers a hundred batches: asked each few seconds, it tells of nearly all of them.
        if self._clock() - kept.asked >= _ASK_EVERY:
            kept.asked, before = self._clock(), kept.dropped
            kept.dropped = max(before, dropped_by_watermark(query))
            if kept.dropped > before:
                _log.error(
                    "view %s lacks at least %d rows that Spark had no state for; "
                    "`millstream rebuild %s` counts them",
                    *(kept.name, kept.dropped, kept.name),
                )

    def _mind_begun(self, kept: _Kept) -> None:
        # From its first commit on, a checkpoint without any is a damaged one.
        if not kept.notes.begun and kept.checkpoint is not None and read_so_far(kept.checkpoint).at:
            begun = msgspec.structs.replace(kept.notes, begun=True)
            with contextlib.suppress(OSError):  # the disk is full: then at a later tick
                write_notes(kept.checkpoint, begun)
                kept.notes = begun


class _Kept:
    """One query and how it has done so far."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.name = query.view.name
        self.starting: QueryStart | None = None
        self.search: Search | None = None  # for what it failed on
        self.turn: ShareChange | None = None  # to another share of its input
        self.running: StreamingQuery | None = None
        self.checkpoint: Path | None = None  # the folder that it was started from
        self.topics: dict[str, str] = {}  # that it uses: name → id
        self.topics_since = 0.0  # when they were so; by the monotonic clock
        self.notes = Notes()
        self.lost = -1  # events that were known to be lost when it last ended over such
        self.state: State = "starting"
        self.failures = 0  # in a row
        self.waits = 0  # in a row, for task slots
        self.restarts = 0
        self.error = ""
        self.due = 0.0  # when to start it
        self.since = 0.0  # when it was last seen to begin to run
        self.dropped = 0  # rows that Spark left out, as far as was seen
        self.asked = 0.0  # when it was last asked for that

    def stop(self) -> None:
        if self.starting is not None:
            self.starting.join()
            self.running = self.starting.running
        if self.search is not None:
            self.search.give_up()
            self.search.join()
        if self.turn is not None:
            self.turn.join()
        if self.running is not None:
            self.running.stop()


def _processes(spark: SparkSession, query: StreamingQuery) -> bool:
    """Whether the query has got to work: tasks wait for events, or a batch is done."""
    if query.lastProgress is not None or query.status["message"] == "Waiting for data to arrive":
        return True
    tracker = spark.sparkContext.statusTracker()
    stages = [
        tracker.getStageInfo(stage)
        for job in tracker.getJobIdsForGroup(str(query.runId))
        # Reference data is read by jobs of their own, which end before the query gets to work.
        if (info := tracker.getJobInfo(job)) is not None and info.status == "RUNNING"
        for stage in info.stageIds
    ]
    return bool(stages) and all(stage and stage.numActiveTasks for stage in stages)


def _text(query: StreamingQuery) -> str:
    """All that Spark says of a query's end: its message, then those of its causes."""
    error = query.exception()
    if error is None:
        return "it ended by itself"
    texts, cause = [str(error)], query._jsq.exception().get().getCause()
    while cause is not None:
        texts.append(f"Caused by: {cause}")
        cause = cause.getCause()
    return "\n".join(texts)


def _why(text: str) -> str:
    """What ended a query, without the stages and stacks around it."""
    text = text.split("terminated with exception: ", 1)[-1]
    if "Python Proxy" in text:  # what a batch's writing in Python raised, below its stack
        text = [text, *re.findall(r"^[\w.]+(?:Error|Exception): (.*)", text, re.MULTILINE)][-1]
    return reason_of(text)
