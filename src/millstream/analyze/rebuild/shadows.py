"""Shadows: views that are computed again beside the ones that are served.

A shadow has its own topic and checkpoint: the next edition of its view. First it replays the log in
batches up to its end, which is fast and shows its progress. Then it runs as the view does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pyspark.sql import SparkSession

from millstream.analyze.history.history import LogRange, find_log_range
from millstream.analyze.plan import ViewPlan
from millstream.analyze.planning.planned_query import PlannedQuery
from millstream.analyze.planning.planner import Planner
from millstream.analyze.query.queries import Queries
from millstream.analyze.rebuild.takeover import Takeover, whole_from
from millstream.errors import MillstreamError
from millstream.pipeline.app import App
from millstream.settings import Settings
from millstream.syntax.duration import milliseconds
from millstream.values.clock import now_ms
from millstream.values.report import RebuildStatus, ViewCounts

_log = logging.getLogger(__name__)
_OR_LATEST = {"startingOffsetsByTimestampStrategy": "latest"}  # if no event is that new
_SETTLED = 2.0  # seconds after which a running query has read what came while it started


@dataclass(slots=True)
class Shadow:
    """One view that is being rebuilt."""

    name: str
    replay: PlannedQuery | None  # the query in batches; None: in batches it would give other rows
    query: PlannedQuery  # the same, as it runs later
    request: str  # the request's id; empty: the pipeline changed
    events_since: int | None  # events from then on; milliseconds since the epoch
    began_at: int  # milliseconds since the epoch
    state: Literal["waiting", "replaying", "starting", "ready"] = "waiting"
    past: LogRange | None = None  # what it replays
    replays_since: float = 0.0
    runs_since: float = 0.0
    whole_from: int = 0  # events of an earlier time may be missing in it; milliseconds
    takeover: Takeover | None = None
    is_marked: bool = False  # rows that correct the old edition's are marked as corrected
    error: str = ""

    @property
    def topic(self) -> str:
        return self.query.plan.topic


class Shadows:
    """The shadows of one `analyze`. Use it from the thread that calls the queries' `tick`."""

    def __init__(
        self,
        spark: SparkSession,
        app: App,
        settings: Settings,
        checkpoints: Path,
        partitions: Callable[[str], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark, self._app, self._settings = spark, app, settings
        self._partitions, self._clock = partitions, clock
        self.queries = Queries(spark, app, settings, checkpoints)
        self._shadows: dict[str, Shadow] = {}

    def __iter__(self) -> Iterator[Shadow]:
        return iter(list(self._shadows.values()))

    def get(self, name: str) -> Shadow | None:
        return self._shadows.get(name)

    def of_request(self, request: str) -> list[Shadow]:
        return [shadow for shadow in self if shadow.request == request]

    @property
    def ready(self) -> list[ViewPlan]:
        """The shadows that have all that the log had when they began, and run on."""
        return [shadow.query.plan for shadow in self if shadow.state == "ready"]

    def plan(
        self, names: Iterable[str], topics: Mapping[str, str], request: str, since: int | None
    ) -> list[Shadow]:
        """Plan shadows of these views, which are to be written to these topics."""
        start = {} if since is None else {"startingTimestamp": str(since), **_OR_LATEST}
        running = self._planner(topics, start)
        replaying = self._planner(topics, start, replays=True)
        shadows = []
        for name in names:
            query, replay = running.query(name), None
            spec = query.plan.window_spec
            if spec is None or spec.replays_in_batches:
                # Both have one plan, and so one checkpoint. They read different amounts at once.
                replay = replace(replaying.query(name), plan=query.plan, replays=True)
            shadows.append(Shadow(name, replay, query, request, since, now_ms()))
        return shadows

    def add(self, shadow: Shadow) -> None:
        self._shadows[shadow.name] = shadow
        _log.info("view %s is rebuilt, into %s", shadow.name, shadow.topic)

    def remove(self, shadow: Shadow) -> None:
        """Forget a shadow; its query ends unless another `Queries` has taken it over."""
        self.queries.drop(shadow.name)
        del self._shadows[shadow.name]

    def advance(self) -> None:
        """Take the next step of each shadow."""
        for shadow in self:
            self._advance(shadow)

    def ready_counts(self) -> dict[str, ViewCounts]:
        """The counts of the shadows that are ready."""
        counts = self.queries.counts()
        return {plan.name: counts[plan.name] for plan in self.ready if plan.name in counts}

    def has_failed(self, shadow: Shadow) -> bool:
        return self.queries.state_of(shadow.name)[0] == "failed"

    def report(self, shadow: Shadow, counts: ViewCounts | None) -> RebuildStatus:
        """The progress of a shadow; `counts` are its query's, if that has started."""
        total = shadow.past.records if shadow.past else 0
        is_replayed = shadow.state in ("starting", "ready")
        done = total if is_replayed else _replayed(shadow.past, counts.read) if counts else 0
        seconds = self._clock() - shadow.replays_since
        return RebuildStatus(
            state="failed" if counts and self.has_failed(shadow) else shadow.state,
            request=shadow.request,
            topic=shadow.topic,
            done=done,
            total=total,
            error=shadow.error,
            since=shadow.events_since,
            started_at=shadow.began_at,
            left_s=round((total - done) * seconds / done, 1) if done and not is_replayed else None,
        )

    def reports(self) -> dict[str, RebuildStatus]:
        """The progress of every shadow."""
        counts = self.queries.counts()
        return {shadow.name: self.report(shadow, counts.get(shadow.name)) for shadow in self}

    def close(self, patience: float) -> None:
        self.queries.stop(patience)

    def _advance(self, shadow: Shadow) -> None:
        if shadow.state == "waiting":
            if all(each.state == "ready" for each in self._inputs(shadow)):
                self._start(shadow)
            return
        state, shadow.error = self.queries.state_of(shadow.name)
        if state == "replayed":
            shadow.state = "starting"
            self.queries.add(shadow.query)
        elif shadow.replay is None and shadow.state == "replaying":
            # It runs from the start. Its progress is known at each analyze.checkpoint_interval.
            read = self.queries.counts()[shadow.name].read
            if shadow.past is not None and _replayed(shadow.past, read) >= shadow.past.records:
                shadow.state = "starting"
        elif shadow.state == "starting" and state == "running":
            shadow.runs_since = shadow.runs_since or self._clock()
            if self._clock() - shadow.runs_since >= _SETTLED:
                shadow.state = "ready"
                _log.info("the rebuild of view %s is ready", shadow.name)

    def _inputs(self, shadow: Shadow) -> list[Shadow]:
        """The shadows whose rows this one reads."""
        return [each for each in self if each.topic in shadow.query.plan.reads]

    def _start(self, shadow: Shadow) -> None:
        log, since = self._settings.log, shadow.events_since
        shadow.past = find_log_range(log, shadow.query.plan.reads, since)
        ahead = max(stream.ahead for stream in self._app.streams.values())
        shadow.whole_from = whole_from(log, shadow.past, since, milliseconds(ahead))
        shadow.state, shadow.replays_since = "replaying", self._clock()
        self.queries.add(shadow.replay or shadow.query)

    def _planner(
        self, topics: Mapping[str, str], options: Mapping[str, str], *, replays: bool = False
    ) -> Planner:
        return Planner(
            self._spark,
            self._app,
            self._settings,
            self._partitions,
            topics=topics,
            options=options,
            replays=replays,
        )


def check_slots(plans: Iterable[ViewPlan], more: Iterable[ViewPlan], slots: int) -> None:
    """MillstreamError unless there are slots for these plans and for more."""
    used, needed = sum(plan.slots for plan in plans), sum(plan.slots for plan in more)
    if slots < used + needed:
        raise MillstreamError(
            f"a rebuild needs {needed} task slots besides {used} in use, but Spark has {slots}",
            remedy="add workers or cores",
        )


def _replayed(past: LogRange | None, read: Mapping[str, Mapping[str, int]]) -> int:
    """How many records of the past were read."""
    if past is None:
        return 0
    return sum(
        max(0, min(end, read.get(topic, {}).get(str(partition), start)) - start)
        for topic, span in past.offsets.items()
        for partition, (start, end) in span.items()
    )
