"""Computes views anew beside the ones that are served, and lets them take their place.

A shadow has a topic and a checkpoint of its own: the next edition of its view. First it replays the
log in batches up to its end, which is quick and says how far it has come; then it runs as the view
does. Which topic holds a view's rows is told by its description: writing that one record is the
change-over. What comes before it can be repeated after a crash; what comes after is cleaning up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import msgspec
from confluent_kafka import KafkaException
from pyspark.sql import SparkSession

from millstream.analyze.checkpoint import forget
from millstream.analyze.history import Past, take_past
from millstream.analyze.plan import ViewPlan
from millstream.analyze.planner import Planner, Query
from millstream.analyze.queries import Queries
from millstream.analyze.requests import Request, open_requests, read_request
from millstream.analyze.session import task_slots
from millstream.app import App
from millstream.audit import Rebuild, ViewCounts
from millstream.errors import LogError, MillstreamError
from millstream.home import Home
from millstream.log.consumer import Reader
from millstream.log.record import Record
from millstream.log.topics import (
    delete_topics,
    edition_of,
    edition_topic,
    known_topics,
    rebuilds_topic,
    view_topic,
    views_topic,
)
from millstream.model import View
from millstream.settings import Settings

_LOGGER = logging.getLogger("millstream.analyze")
_OR_LATEST = {"startingOffsetsByTimestampStrategy": "latest"}  # where nothing is that new
_SETTLED = 2.0  # seconds after which a query that runs has taken in what came while it started
_FAREWELL = 5.0  # seconds for which an old topic stays for servers that still read it


@dataclass(slots=True)
class _Shadow:
    name: str
    replay: Query | None  # in batches; None: only as it runs on does it give the same rows
    query: Query  # the same, to run on
    request: str  # whose; empty: the pipeline changed
    state: Literal["waiting", "replaying", "starting", "ready"] = "waiting"
    past: Past | None = None  # what it replays
    since: float = 0.0  # when it was first seen to run
    error: str = ""

    @property
    def topic(self) -> str:
        return self.query.plan.topic


class Rebuilds:
    """The shadows of one `analyze`. Call `tick` from the thread that calls the queries'."""

    def __init__(
        self,
        spark: SparkSession,
        app: App,
        settings: Settings,
        home: Home,
        queries: Queries,
        tell: Callable[[str, str, bytes | None], None],
        partitions: Callable[[str], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tell` writes a record, by topic, key and value, and returns when the log has it."""
        self._spark, self._app, self._settings = spark, app, settings
        self._tell = tell
        self._checkpoints = home.checkpoints
        self._partitions, self._clock = partitions, clock
        self._queries = queries
        self._beside = Queries(spark, app, settings, home.checkpoints)
        self._active: dict[str, ViewPlan] = {}
        self._shadows: dict[str, _Shadow] = {}
        self._refused: dict[str, Rebuild] = {}
        self._retired: list[tuple[float, str, str]] = []  # when, view, topic
        self._wishes, read = open_requests(settings.log, app.name)
        self._fresh = dict(self._wishes)
        self._lock = threading.Lock()
        topic = rebuilds_topic(app.name)
        start = {(topic, partition): offset for partition, offset in read.items()}
        self._reader = Reader(settings.log, start, self._take)

    @property
    def plans(self) -> list[ViewPlan]:
        """The views as they are served."""
        return list(self._active.values())

    def serve(self, plans: Iterable[ViewPlan]) -> None:
        """The views as they are served; whatever else there is of them was left by a crash."""
        self._active = {plan.name: plan for plan in plans}

    def clean_up(self) -> None:
        """Remove what former editions left, once it is known what is being rebuilt."""
        self._heed_all()
        known = known_topics(self._settings.log)
        for name, plan in self._active.items():
            shadow = self._shadows.get(name)
            kept = {plan.topic, *([shadow.topic] if shadow else [])}
            forget(self._checkpoints, name, but=kept)
            first = view_topic(self._app.name, name)
            editions = {topic for topic in known if topic.startswith(f"{first}.")} | {first}
            delete_topics(self._settings.log, editions - kept)

    def can(self, view: str) -> bool:
        """Whether a view and those that read its rows can be computed anew beside themselves."""
        return all(
            map(is_rebuildable, map(self._app.views.__getitem__, self._with_readers({view})))
        )

    def begin(self, names: Iterable[str], request: str = "", since: int | None = None) -> None:
        """Compute these views anew, and those that read their rows from the log."""
        wanted = self._with_readers(set(names))
        for name in wanted:
            check_rebuildable(self._app.views[name])
        topics = {name: plan.topic for name, plan in self._active.items()}
        topics |= {name: self._next_topic(name) for name in wanted}
        start = {} if since is None else {"startingTimestamp": str(since), **_OR_LATEST}
        runs = self._plan(wanted, topics, start)
        # Each batch is a step of its progress.
        most = {"maxOffsetsPerTrigger": str(self._settings.analyze.batch_events)}
        replays = self._plan(wanted, topics, {**start, **most})
        slots = sum(runs[name].plan.slots for name in wanted)
        self._check_slots(slots)
        for name in wanted:
            replay = None if _counts(runs[name]) else replace(replays[name], replays=True)
            self._shadows[name] = _Shadow(name, replay, runs[name], request)
            _LOGGER.info("view %s is computed anew, into %s", name, topics[name])

    def tick(self) -> None:
        """Do what is wished, and the next step of each shadow; Kafka being away delays it."""
        self._heed_all()
        self._beside.tick()
        try:
            for shadow in list(self._shadows.values()):
                self._advance(shadow)
            self._change_over()
            self._retire()
        except (LogError, KafkaException) as error:
            _LOGGER.warning("rebuilding waits for Kafka: %s", error)

    def add_to(self, counts: dict[str, ViewCounts]) -> dict[str, ViewCounts]:
        """The views' counts with what is known of their shadows."""
        for name, refused in self._refused.items():
            counts.setdefault(name, ViewCounts()).rebuild = refused
        read = self._beside.counts()
        for name, shadow in self._shadows.items():
            entry = counts.setdefault(name, ViewCounts(state="starting"))
            done = _done(shadow.past, read[name].read) if name in read else 0
            total = shadow.past.records if shadow.past else 0
            failed = name in read and self._beside.state_of(name)[0] == "failed"
            entry.rebuild = Rebuild(
                state="failed" if failed else shadow.state,
                request=shadow.request,
                topic=shadow.topic,
                done=total if shadow.state in ("starting", "ready") else done,
                total=total,
                error=shadow.error,
            )
        return counts

    def close(self, patience: float) -> None:
        self._reader.close()
        self._beside.stop(patience)

    def _take(self, records: list[Record]) -> None:
        with self._lock:
            for record in records:
                name, wish = read_request(record) or ("", None)
                if wish is not None:
                    self._fresh[name] = wish

    def _heed_all(self) -> None:
        with self._lock:
            fresh, self._fresh = self._fresh, {}
        for view, wish in fresh.items():
            self._heed(view, wish)

    def _heed(self, view: str, wish: Request) -> None:
        before = self._wishes.get(view)
        self._wishes[view] = wish
        mine = [shadow for shadow in self._shadows.values() if shadow.request == wish.id]
        if wish.cancel:
            for shadow in mine:
                self._give_up(shadow)
            self._refused.pop(view, None)
            self._fulfil(view)
        elif not mine and view in self._active:
            self._refused.pop(view, None)
            try:
                self._fulfil_later(view, wish, before)
            except MillstreamError as error:
                self._refused[view] = Rebuild(state="failed", request=wish.id, error=str(error))

    def _fulfil_later(self, view: str, wish: Request, before: Request | None) -> None:
        if view not in self._shadows:
            self.begin([view], wish.id, wish.since)
        elif before is not None and before.since == wish.since:
            # Whoever asked before is gone, else the request would be withdrawn.
            for shadow in self._shadows.values():
                if shadow.request == before.id:
                    shadow.request = wish.id
        else:
            raise MillstreamError(
                f"view {view} is being rebuilt already, from another time or with a changed query",
                remedy="wait until that is done; `millstream status` tells",
            )

    def _advance(self, shadow: _Shadow) -> None:
        name = shadow.name
        if shadow.state == "waiting":
            if all(self._shadows[each].state == "ready" for each in self._awaited(shadow)):
                wish = self._wishes.get(self._asked_for(shadow))
                since = wish.since if wish is not None else None
                shadow.past = take_past(self._settings.log, shadow.query.plan.reads, since)
                shadow.state = "replaying"
                self._beside.add(shadow.replay or shadow.query)
            return
        state, shadow.error = self._beside.state_of(name)
        if state == "replayed":
            shadow.state = "starting"
            self._beside.add(shadow.query)
        elif shadow.replay is None and shadow.state == "replaying":
            # By what it has committed, each `analyze.checkpoint_interval`.
            read = self._beside.counts()[name].read
            if shadow.past is not None and _done(shadow.past, read) >= shadow.past.records:
                shadow.state = "starting"
        elif shadow.state == "starting" and state == "running":
            shadow.since = shadow.since or self._clock()
            if self._clock() - shadow.since >= _SETTLED:
                shadow.state = "ready"
                _LOGGER.info("view %s is computed anew", name)

    def _awaited(self, shadow: _Shadow) -> list[str]:
        """The shadows whose rows this one reads."""
        reads = shadow.query.plan.reads
        return [name for name, each in self._shadows.items() if each.topic in reads]

    def _asked_for(self, shadow: _Shadow) -> str:
        """The view that was named in the request that the shadow belongs to."""
        wishes = ((view, wish) for view, wish in self._wishes.items())
        return next((view for view, wish in wishes if wish.id == shadow.request), "")

    def _change_over(self) -> None:
        for shadow in list(self._shadows.values()):
            if shadow.request:
                asked = self._asked_for(shadow)
                group = [s for s in self._shadows.values() if s.request == shadow.request]
                wish = self._wishes.get(asked)
                if wish is None or not wish.go or any(s.state != "ready" for s in group):
                    continue
                for each in group:
                    self._swap(each)
                self._fulfil(asked)
            elif shadow.name in self._shadows and shadow.state == "ready":
                self._swap(shadow)

    def _fulfil(self, view: str) -> None:
        del self._wishes[view]
        self._tell(rebuilds_topic(self._app.name), view, None)

    def _swap(self, shadow: _Shadow) -> None:
        old = self._active[shadow.name].topic
        description = msgspec.json.encode(shadow.query.plan.describe())
        self._tell(views_topic(self._app.name), shadow.name, description)
        self._active[shadow.name] = shadow.query.plan
        self._queries.take_over(shadow.name, self._beside)
        del self._shadows[shadow.name]
        self._retired.append((self._clock() + _FAREWELL, shadow.name, old))
        _LOGGER.info("view %s is served from %s now", shadow.name, shadow.topic)

    def _retire(self) -> None:
        due = [each for each in self._retired if each[0] <= self._clock()]
        for each in due:
            _, name, topic = each
            delete_topics(self._settings.log, [topic])
            self._retired.remove(each)
            shadow = self._shadows.get(name)
            kept = [self._active[name].topic, *([shadow.topic] if shadow else [])]
            forget(self._checkpoints, name, but=kept)

    def _give_up(self, shadow: _Shadow) -> None:
        self._beside.drop(shadow.name)
        del self._shadows[shadow.name]
        self._retired.append((self._clock() + _FAREWELL, shadow.name, shadow.topic))

    def _next_topic(self, view: str) -> str:
        """A topic that no query writes to, not even one that is just ending."""
        used = [
            self._active[view].topic,
            *(topic for _, name, topic in self._retired if name == view),
        ]
        return edition_topic(self._app.name, view, 1 + max(map(edition_of, used)))

    def _with_readers(self, names: set[str]) -> list[str]:
        """The views, and those that read one of them as a table, inputs first."""
        topics = {self._active[name].topic for name in names}
        for view in self._app.views_in_order():
            plan = self._active[view.name]
            if topics & set(plan.reads):
                names.add(view.name)
                topics.add(plan.topic)
        return [view.name for view in self._app.views_in_order() if view.name in names]

    def _plan(
        self, names: Iterable[str], topics: Mapping[str, str], options: Mapping[str, str]
    ) -> dict[str, Query]:
        planner = Planner(
            *(self._spark, self._app, self._settings, self._partitions),
            topics=topics,
            options=options,
        )
        return {name: planner.query(name) for name in names}

    def _check_slots(self, more: int) -> None:
        running = [plan for name, plan in self._active.items() if name in self._queries.views]
        shadows = [shadow.query.plan for shadow in self._shadows.values()]
        used = sum(plan.slots for plan in (*running, *shadows))
        if (have := task_slots(self._spark)) < used + more:
            raise MillstreamError(
                f"a rebuild needs {more} task slots besides {used} in use, but Spark has {have}",
                remedy="add workers or cores",
            )


def is_rebuildable(view: View) -> bool:
    """Whether what a view shows is just what its query writes."""
    return not view.has_panes and not view.ledger


def check_rebuildable(view: View) -> None:
    """MillstreamError unless the view can be computed anew beside itself."""
    if not is_rebuildable(view):
        raise MillstreamError(
            f"view {view.name} has a trigger, an accumulation or a ledger of its own, and what "
            "that has told cannot be taken back by another edition",
            remedy="verify it; if it is wrong, stop the system and remove its checkpoint",
        )


def _counts(query: Query) -> bool:
    """Whether it groups by a number of events, which only real-time mode counts one by one."""
    spec = query.plan.window_spec
    return spec is not None and spec.kind == "count"


def _done(past: Past | None, read: Mapping[str, Mapping[str, int]]) -> int:
    if past is None:
        return 0
    return sum(
        max(0, min(end, read.get(topic, {}).get(str(partition), start)) - start)
        for topic, span in past.spans.items()
        for partition, (start, end) in span.items()
    )
