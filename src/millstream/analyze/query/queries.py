"""Starts the continuous queries of views and restarts them; no other module starts queries."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millstream.analyze.monitor.topic_watch import TopicWatch
from millstream.analyze.planning.planned_query import PlannedQuery
from millstream.analyze.query.query_start import QueryStart
from millstream.analyze.query.view_query import (
    ChangingShare,
    Replayed,
    Running,
    Searching,
    Starting,
    State,
    Stopped,
    ViewQuery,
    Waiting,
    end_phase,
    exception_reason,
    exception_text,
    is_processing,
)
from millstream.analyze.recovery.checkpoint import checkpoint_folder, topic_changed
from millstream.analyze.recovery.checkpoint_notes import read_notes, write_notes
from millstream.analyze.recovery.damage import CheckpointDamaged, explain_state_error
from millstream.analyze.recovery.data_loss import is_data_loss
from millstream.analyze.recovery.poison import is_data_error
from millstream.analyze.recovery.poison_search import PoisonSearch
from millstream.analyze.recovery.progress import (
    NOTHING_READ,
    committed_offsets,
    dropped_by_watermark,
)
from millstream.analyze.recovery.shed_ranges import (
    FULL_SHARE,
    count_left_out,
    share_of,
    share_since,
)
from millstream.analyze.shedding.share_change import ShareChange
from millstream.analyze.spark.python_workers import missing_dependency
from millstream.analyze.spark.realtime import condense
from millstream.errors import TopicChanged
from millstream.log.topic_names import stream_topic
from millstream.pipeline.app import App
from millstream.settings import Settings
from millstream.values.report import ViewCounts

_log = logging.getLogger(__name__)
_STABLE_AFTER = 60.0  # seconds without a failure, after which earlier ones do not count
_LONGEST_WAIT = 30.0
_AFTERMATH = 3.0  # seconds in which the tasks of a stopped query still log that they ended
_CHECK_DROPPED_EVERY = 5.0
_REPORTED_LOSSES = 10
_COUNTED_SHED = 100_000  # shed events that are counted in one call
_NO_SLOTS = "CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT"
_WAIT_FOR_SLOTS = 0.5  # seconds
_MAX_SLOT_WAITS = 60  # in a row; then it is a failure
_FAILED_AFTER = 5  # failures in a row; a failed view is still restarted
_JVM_GONE = (Py4JNetworkError, ConnectionError)


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
        self._views: dict[str, ViewQuery] = {}
        self._topics = TopicWatch(settings.log)

    def add_all(self, queries: Iterable[PlannedQuery]) -> None:
        for query in queries:
            self.add(query)

    def add(self, query: PlannedQuery) -> None:
        """Keep the query running from the next `tick` on, in the place of the view's former one.

        The former one must have ended.
        """
        view = self._views[query.view.name] = ViewQuery(query)
        with contextlib.suppress(CheckpointDamaged):  # its start reports that
            view.notes = read_notes(checkpoint_folder(self._checkpoints, query.plan))

    def drop(self, view: str) -> None:
        """End a view's query, without waiting for its end."""
        if (dropped := self._views.pop(view, None)) is not None:
            self._end_quietly(partial(end_phase, dropped.phase))

    def _end_quietly(self, end: Callable[[], None]) -> None:
        context = self._spark.sparkContext

        def run() -> None:
            # Every task that is ended logs that at length, which is not news.
            context.setLogLevel("OFF")
            end()
            time.sleep(_AFTERMATH)
            context.setLogLevel("WARN")

        threading.Thread(target=run, daemon=True).start()

    def take_over(self, view: str, others: Queries) -> None:
        """Replace the view's query by the one that `others` has."""
        self.drop(view)
        self._views[view] = others._views.pop(view)

    @property
    def views(self) -> set[str]:
        return set(self._views)

    def state_of(self, view: str) -> tuple[State, str]:
        """The state of a view's query, and its last error."""
        return self._views[view].state, self._views[view].error

    def change_share(self, name: str, share: int) -> None:
        """Restart a running query with another share of its input, in thousandths.

        Rows that it has written stay as they are. Doesn't block.
        """
        view = self._views[name]
        if view.state != "running" or view.running is None or view.checkpoint is None:
            return
        streams = {stream_topic(self._app.name, each) for each in self._app.streams}
        change = ShareChange(
            view.query,
            tuple(streams & set(view.query.plan.reads)),
            view.running,
            view.checkpoint,
            view.notes,
            self._settings.log,
            share,
        )
        view.phase, view.pending_state = ChangingShare(change), "starting"

    def share_of(self, name: str) -> tuple[int, int] | None:
        """The share that a running query takes, and the sum of the offsets at which it began."""
        view = self._views.get(name)
        if view is None or view.state != "running" or view.query.replays:
            return None
        return share_of(view.notes.shed), share_since(view.notes.shed)

    def tick(self) -> None:
        """Start the queries that are due, and check the others."""
        self._topics.follow({topic for view in self._views.values() for topic in view.topics})
        for view in self._views.values():
            match view.phase:
                case Waiting(due) if self._clock() >= due:
                    start = QueryStart(view.query, self._app, self._settings, self._checkpoints)
                    view.phase = Starting(start)
                case Starting(start) if not start.is_alive():
                    self._finish_start(view, start)
                case Searching(search, due) if not search.is_alive():
                    self._finish_search(view, search, due)
                case ChangingShare(change) if not change.is_alive():
                    self._finish_share_change(view, change)
                case Running(query, since):
                    self._check_running(view, query, since)
                case _:
                    pass

    def counts(self) -> dict[str, ViewCounts]:
        return {name: self._counts(view) for name, view in self._views.items()}

    def _counts(self, view: ViewQuery) -> ViewCounts:
        read = committed_offsets(view.checkpoint) if view.checkpoint else NOTHING_READ
        if view.notes.shed and not isinstance(view.phase, ChangingShare):
            shed = count_left_out(view.notes.shed, read.offsets, _COUNTED_SHED)
            view.notes = msgspec.structs.replace(view.notes, shed=shed)
        notes = view.notes
        return ViewCounts(
            state="running" if view.state == "replayed" else view.state,
            restarts=view.restarts,
            error=view.error,
            read=read.offsets,
            read_at=read.at,
            broken=len(notes.broken),
            newest_broken=notes.broken[-1] if notes.broken else None,
            lost=sum(map(len, notes.lost)),
            losses=list(notes.lost[-_REPORTED_LOSSES:]),
            dropped=view.dropped,
            warning=notes.warning,
            shed=notes.shed_before + sum(each.left_out for each in notes.shed),
            share=share_of(notes.shed) / FULL_SHARE,
        )

    @property
    def settled(self) -> bool:
        """Whether each query runs or has failed once."""
        return all(view.state == "running" or view.failures for view in self._views.values())

    def stop(self, patience: float) -> None:
        """End all queries; after `patience` seconds the rest is left to the end of the JVM."""
        self._topics.close()
        deadline = time.monotonic() + patience
        threads = []
        for view in self._views.values():
            phase, view.phase = view.phase, Stopped()
            threads.append(threading.Thread(target=end_phase, args=(phase,), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _finish_start(self, view: ViewQuery, start: QueryStart) -> None:
        view.checkpoint, view.notes = start.checkpoint, start.notes
        view.topics, view.topics_since = start.topics, time.monotonic()
        if start.running is not None:
            view.phase = Running(start.running)
            return
        match start.error:
            case Py4JNetworkError() | ConnectionError():  # all queries ended with the JVM
                raise start.error
            case TopicChanged():
                self._failed(view, str(start.error), "failed")
            case error:
                self._failed(view, condense(str(error) or type(error).__name__))

    def _check_running(self, view: ViewQuery, query: StreamingQuery, since: float | None) -> None:
        if changed := self._topics.changed(view.topics, view.topics_since):
            self._topic_changed(view, query, changed)
        elif not query.isActive:
            if view.query.replays and not query.exception():
                view.phase = Replayed()
            else:
                self._ended(view, exception_text(query))
        elif since is None:
            if is_processing(self._spark, query):
                view.phase = Running(query, self._clock())
                view.error, view.slot_waits = "", 0
        else:
            self._note_begun(view)
            self._check_dropped(view, query)
            if self._clock() - since > _STABLE_AFTER:
                view.failures = 0

    def _topic_changed(
        self, view: ViewQuery, query: StreamingQuery, changed: Mapping[str, bool]
    ) -> None:
        """End a query whose topic was deleted; its next start checks the topics again."""
        self._end_quietly(query.stop)
        topic, exists = next(iter(changed.items()))
        view.topics = {}
        self._failed(view, str(topic_changed(view.query.plan, topic, exists=exists)), "failed")

    def _ended(self, view: ViewQuery, text: str) -> None:
        """Restart a query that ended with this exception, after a search if an event caused it."""
        lost = sum(map(len, view.notes.lost))
        if is_data_loss(text) and lost != view.lost_before:
            # Its start finds what is lost. It starts at once, because retention goes on.
            view.phase, view.pending_state, view.lost_before = Waiting(0.0), "restarting", lost
            view.restarts += 1
        elif _NO_SLOTS in text and view.slot_waits < _MAX_SLOT_WAITS:
            # Other jobs, such as those that read reference data, have them for a moment.
            view.phase, view.pending_state = Waiting(self._clock() + _WAIT_FOR_SLOTS), "starting"
            view.slot_waits += 1
        else:
            why = explain_state_error(view.name, text) or missing_dependency(text)
            due = self._failed(view, why or exception_reason(text))
            if view.checkpoint is not None and is_data_error(text):
                log, checkpoint = self._settings.log, view.checkpoint
                view.phase = Searching(PoisonSearch(view.query, self._app, log, checkpoint), due)

    def _finish_search(self, view: ViewQuery, search: PoisonSearch, due: float) -> None:
        view.phase = Waiting(due)
        if isinstance(search.error, _JVM_GONE):
            raise search.error
        if search.error is not None:
            _log.error("view %s: %s", view.name, condense(str(search.error)))
        elif search.found:
            view.notes, view.failures, view.phase = search.notes, 0, Waiting(0.0)
        else:
            view.error = f"{view.error}; no event fails by itself, so none can be set aside"

    def _finish_share_change(self, view: ViewQuery, change: ShareChange) -> None:
        view.phase, view.notes = Waiting(0.0), change.notes
        if isinstance(change.error, _JVM_GONE):
            raise change.error
        if change.error is not None:
            _log.error("view %s cannot shed: %s", view.name, condense(str(change.error)))
        elif change.share < FULL_SHARE:
            share = f"{change.share / FULL_SHARE:.1%}"
            _log.warning(
                "view %s cannot keep up, and takes %s of its input from here on", view.name, share
            )
        else:
            _log.warning("view %s takes all of its input again", view.name)

    def _failed(self, view: ViewQuery, why: str, state: Literal["failed"] | None = None) -> float:
        """Record a failure, and return the time of the next start."""
        view.failures += 1
        view.restarts += 1
        is_news, view.error = why != view.error, why
        view.pending_state = state or ("failed" if view.failures >= _FAILED_AFTER else "restarting")
        delay = min(_LONGEST_WAIT, 0.5 * 2.0 ** (view.failures - 1))
        due = self._clock() + delay
        view.phase = Waiting(due)
        level = logging.ERROR if is_news else logging.DEBUG
        _log.log(level, "view %s stopped: %s; starting it again in %g s", view.name, why, delay)
        return due

    def _check_dropped(self, view: ViewQuery, query: StreamingQuery) -> None:
        # Spark remembers a hundred batches: checked every few seconds, hardly any is missed.
        if self._clock() - view.dropped_checked < _CHECK_DROPPED_EVERY:
            return
        view.dropped_checked, before = self._clock(), view.dropped
        view.dropped = max(before, dropped_by_watermark(query))
        if view.dropped > before:
            _log.error(
                "view %s lacks at least %d rows that Spark had no state for; "
                "`millstream rebuild %s` counts them",
                view.name,
                view.dropped,
                view.name,
            )

    def _note_begun(self, view: ViewQuery) -> None:
        """Note the first commit: after it, a checkpoint without commits is damaged."""
        if view.notes.begun or view.checkpoint is None or not committed_offsets(view.checkpoint).at:
            return
        begun = msgspec.structs.replace(view.notes, begun=True)
        with contextlib.suppress(OSError):  # the disk is full; a later tick tries again
            write_notes(view.checkpoint, begun)
            view.notes = begun
