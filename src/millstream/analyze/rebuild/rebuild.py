"""Computes views anew beside the ones that are served, and lets them take their place.

A shadow has a topic and a checkpoint of its own: the next edition of its view. First it replays the
log in batches up to its end, which is quick and says how far it has come; then it runs as the view
does. Which topic holds a view's rows is told by its description: writing that one record is the
change-over. What comes before it can be repeated after a crash; what comes after is cleaning up.

Before that the shadow's rows get their states: what is final in the old edition is final in the new
one, or corrected (`succession`). While it comes to that, no more rows of the old one become final.
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

from millstream.analyze.history.history import LogRange, find_log_range
from millstream.analyze.plan import ViewPlan
from millstream.analyze.planning.editions import describe_views, query_topic_of
from millstream.analyze.planning.planner import Planner
from millstream.analyze.planning.query import Query
from millstream.analyze.query.queries import Queries
from millstream.analyze.rebuild.rebuildable import check_rebuildable, why_not
from millstream.analyze.rebuild.requests import Request, open_requests, read_request
from millstream.analyze.rebuild.takeover import Takeover, whole_from
from millstream.analyze.recovery.checkpoint import delete_checkpoints
from millstream.analyze.row_state.committed_watermarks import final_until
from millstream.analyze.row_state.row_state import has_row_states
from millstream.analyze.spark.session import task_slots
from millstream.analyze.triggers.ledger import Edition
from millstream.analyze.triggers.processor import edition_record
from millstream.errors import LogError, MillstreamError
from millstream.log.consumer import Reader
from millstream.log.record import Record
from millstream.log.topic_names import (
    edition_of,
    edition_topic,
    editions,
    output_state_topic,
    rebuilds_topic,
    views_topic,
)
from millstream.log.topics import delete_topics, known_topics
from millstream.pipeline.app import App
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.runtime.home import Home
from millstream.settings import Settings
from millstream.syntax.duration import milliseconds
from millstream.values.clock import now_ms
from millstream.values.report import RebuildStatus, ViewCounts

_log = logging.getLogger(__name__)
_OR_LATEST = {"startingOffsetsByTimestampStrategy": "latest"}  # where nothing is that new
_SETTLED = 2.0  # seconds after which a query that runs has taken in what came while it started
_LOOK_EVERY = 0.5  # seconds between two looks at whether one can take over: that asks Kafka
_FAREWELL = 5.0  # seconds for which an old topic stays for servers that still read it


@dataclass(slots=True)
class _Shadow:
    name: str
    replay: Query | None  # in batches; None: only as it runs on does it give the same rows
    query: Query  # the same, to run on
    request: str  # whose; empty: the pipeline changed
    events_since: int | None  # only those; in milliseconds since the epoch
    began_at: int  # milliseconds since the epoch
    state: Literal["waiting", "replaying", "starting", "ready"] = "waiting"
    past: LogRange | None = None  # what it replays
    replays_since: float = 0.0
    since: float = 0.0  # when it was first seen to run
    whole_from: int = 0  # events of an earlier time may be missing in it; milliseconds
    succession: Takeover | None = None
    is_marked: bool = False  # rows that correct the old edition's say so
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
        self._ended: dict[str, RebuildStatus] = {}  # the last one of each view
        self._looked = 0.0
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

    @property
    def kept(self) -> list[ViewPlan]:
        """Those of them whose queries run: of one that was changed, the old one does not."""
        return [plan for plan in self.plans if plan.name in self._queries.views]

    @property
    def ready(self) -> list[ViewPlan]:
        """The shadows that have all that the log had when they began, and run on."""
        return [s.query.plan for s in self._shadows.values() if s.state == "ready"]

    @property
    def leaving(self) -> set[str]:
        """The views whose old edition is about to go."""
        return {shadow.name for shadow in self._shadows.values() if self._may_go(shadow)}

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
            delete_checkpoints(self._checkpoints, name, but=kept)
            gone = editions(self._app.name, name, known, but=map(edition_of, kept))
            delete_topics(self._settings.log, gone)

    def can(self, view: str) -> bool:
        """Whether a view and those that read its rows can be computed anew beside themselves."""
        views = map(self._app.views.__getitem__, self._with_readers({view}))
        return all(not why_not(self._app, each) for each in views)

    def begin(self, names: Iterable[str], request: str = "", since: int | None = None) -> None:
        """Compute these views anew, and those that read their rows from the log."""
        wanted = self._with_readers(set(names))
        for name in wanted:
            check_rebuildable(self._app, self._app.views[name])
        ensure_topics(self._app, self._settings.log)  # a stream's may have been deleted
        topics = {name: plan.topic for name, plan in self._active.items()}
        topics |= {name: self._next_topic(name) for name in wanted}
        start = {} if since is None else {"startingTimestamp": str(since), **_OR_LATEST}
        runs = self._plan(wanted, topics, start)
        replays = self._plan(wanted, topics, start, replays=True)
        slots = sum(runs[name].plan.slots for name in wanted)
        self._check_slots(slots)
        for name in wanted:
            query = runs[name]
            replay = None
            if not _counts(query):
                # One plan, and so one checkpoint: what differs is how much is read and kept.
                replay = replace(replays[name], plan=query.plan, replays=True)
            self._shadows[name] = _Shadow(name, replay, query, request, since, now_ms())
            self._ended.pop(name, None)
            _log.info("view %s is computed anew, into %s", name, topics[name])

    def tick(self, is_final_until: Callable[[str, int], bool]) -> None:
        """Do what is wished, and the next step of each shadow; Kafka being away delays it.

        `is_final_until` says of a shadow, by its view, whether the rows of windows that ended by
        then are final, and shown as that.
        """
        self._heed_all()
        self._beside.tick()
        try:
            for shadow in list(self._shadows.values()):
                self._advance(shadow)
            if self._clock() - self._looked >= _LOOK_EVERY:
                self._looked = self._clock()
                self._change_over(is_final_until)
            self._retire()
        except (LogError, KafkaException) as error:
            _log.warning("rebuilding waits for Kafka: %s", error)

    def counts(self) -> dict[str, ViewCounts]:
        """How the shadows are that are ready."""
        ready = {plan.name for plan in self.ready}
        return {name: each for name, each in self._beside.counts().items() if name in ready}

    def add_to(self, counts: dict[str, ViewCounts]) -> dict[str, ViewCounts]:
        """The views' counts with what is known of their shadows."""
        for name, ended in self._ended.items():
            counts.setdefault(name, ViewCounts()).rebuild = ended
        read = self._beside.counts()
        for name, shadow in self._shadows.items():
            entry = counts.setdefault(name, ViewCounts(state="starting"))
            entry.rebuild = self._tell_of(shadow, read.get(name))
        return counts

    def _tell_of(self, shadow: _Shadow, counts: ViewCounts | None) -> RebuildStatus:
        total = shadow.past.records if shadow.past else 0
        replayed = shadow.state in ("starting", "ready")
        done = total if replayed else _done(shadow.past, counts.read) if counts else 0
        seconds = self._clock() - shadow.replays_since
        return RebuildStatus(
            state="failed" if counts and self._has_failed(shadow) else shadow.state,
            request=shadow.request,
            topic=shadow.topic,
            done=done,
            total=total,
            error=shadow.error,
            since=shadow.events_since,
            started_at=shadow.began_at,
            left_s=round((total - done) * seconds / done, 1) if done and not replayed else None,
        )

    def _has_failed(self, shadow: _Shadow) -> bool:
        return self._beside.state_of(shadow.name)[0] == "failed"

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
        if wish.cancel and before is not None and before.id != wish.id:
            self._insist(view, before)  # who asked for another one, in vain, has gone
            return
        self._wishes[view] = wish
        if wish.cancel:
            for shadow in self._of(wish):
                self._give_up(shadow)
            self._fulfil(view)
        elif not self._of(wish) and view in self._active:
            self._ended.pop(view, None)
            try:
                self._fulfil_later(view, wish, before)
            except MillstreamError as error:
                if before is not None and self._of(before):
                    self._insist(view, before)
                    return
                self._ended[view] = RebuildStatus(
                    *("failed", wish.id),
                    error=str(error),
                    since=wish.since,
                    started_at=now_ms(),
                    ended_at=now_ms(),
                )

    def _of(self, wish: Request) -> list[_Shadow]:
        return [shadow for shadow in self._shadows.values() if shadow.request == wish.id]

    def _insist(self, view: str, wish: Request) -> None:
        """Go on with what was asked for first, after a crash too; who asked later sees it there."""
        self._wishes[view] = wish
        self._tell(rebuilds_topic(self._app.name), view, msgspec.json.encode(wish))

    def _fulfil_later(self, view: str, wish: Request, before: Request | None) -> None:
        involved = self._with_readers({view})
        busy = [self._shadows[name] for name in involved if name in self._shadows]
        if not busy:
            self.begin([view], wish.id, wish.since)
        elif any(not shadow.request for shadow in busy):
            with self._lock:  # what changed in the pipeline comes first
                self._fresh.setdefault(view, wish)
        elif before is not None and before.since == wish.since:
            # Whoever asked before is gone, else the request would be withdrawn.
            for shadow in self._of(before):
                shadow.request = wish.id
        else:
            raise MillstreamError(
                f"view {view} is being rebuilt already, from another time or with its readers",
                remedy="wait until that is done; `millstream status` tells",
            )

    def _advance(self, shadow: _Shadow) -> None:
        name = shadow.name
        if shadow.state == "waiting":
            if all(self._shadows[each].state == "ready" for each in self._awaited(shadow)):
                wish = self._wishes.get(self._asked_for(shadow))
                since = wish.since if wish is not None else None
                shadow.past = find_log_range(self._settings.log, shadow.query.plan.reads, since)
                ahead = max(stream.ahead for stream in self._app.streams.values())
                shadow.whole_from = whole_from(
                    self._settings.log, shadow.past, since, milliseconds(ahead)
                )
                shadow.state, shadow.replays_since = "replaying", self._clock()
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
                _log.info("view %s is computed anew", name)

    def _awaited(self, shadow: _Shadow) -> list[str]:
        """The shadows whose rows this one reads."""
        reads = shadow.query.plan.reads
        return [name for name, each in self._shadows.items() if each.topic in reads]

    def _asked_for(self, shadow: _Shadow) -> str:
        """The view that was named in the request that the shadow belongs to."""
        wishes = ((view, wish) for view, wish in self._wishes.items())
        return next((view for view, wish in wishes if wish.id == shadow.request), "")

    def _group(self, shadow: _Shadow) -> list[_Shadow]:
        """Those that take over together."""
        mates = [s for s in self._shadows.values() if s.request == shadow.request]
        return mates if shadow.request else [shadow]

    def _may_go(self, shadow: _Shadow) -> bool:
        """Whether all that are to take over together are ready, and it is wished."""
        wish = self._wishes.get(self._asked_for(shadow))
        is_wished = not shadow.request or (wish is not None and wish.go)
        return is_wished and all(each.state == "ready" for each in self._group(shadow))

    def _change_over(self, is_final_until: Callable[[str, int], bool]) -> None:
        for shadow in list(self._shadows.values()):
            if shadow.name not in self._shadows or not self._may_go(shadow):
                continue
            group = self._group(shadow)
            if not all([self._is_fit(each, is_final_until) for each in group]):
                continue
            asked = self._asked_for(shadow)
            for each in group:
                self._swap(each)
            if shadow.request:
                self._fulfil(asked)

    def _is_fit(self, shadow: _Shadow, is_final_until: Callable[[str, int], bool]) -> bool:
        """Whether clients can go over to it without seeing a final row that is so no more."""
        plan, log = shadow.query.plan, self._settings.log
        if not has_row_states(plan):
            return is_final_until(shadow.name, 0)
        described = describe_views(self._app.name, log).get(shadow.name)
        old = "" if described is None else query_topic_of(self._app.name, described)
        if old not in known_topics(log):
            return is_final_until(shadow.name, 0)
        if not is_final_until(shadow.name, final_until(log, self._app.name, old)):
            return False
        if shadow.succession is None and not shadow.is_marked:
            shadow.succession = Takeover(log, plan, old)
        if shadow.succession is not None and not shadow.succession.is_alive():
            error, shadow.succession = shadow.succession.error, None
            shadow.is_marked = error is None
            if error is not None:
                _log.warning("view %s waits to take over: %s", shadow.name, error)
            return False  # until those are shown, too
        return shadow.is_marked

    def _fulfil(self, view: str) -> None:
        del self._wishes[view]
        self._tell(rebuilds_topic(self._app.name), view, None)

    def _swap(self, shadow: _Shadow) -> None:
        old, told = self._active[shadow.name].topic, self._tell_of(shadow, None)
        if self._app.views[shadow.name].ledger:
            edition = Edition(shadow.topic, shadow.whole_from)
            self._tell(output_state_topic(self._app.name, shadow.name), *edition_record(edition))
        description = msgspec.json.encode(shadow.query.plan.describe())
        self._tell(views_topic(self._app.name), shadow.name, description)
        self._active[shadow.name] = shadow.query.plan
        self._queries.take_over(shadow.name, self._beside)
        del self._shadows[shadow.name]
        self._ended[shadow.name] = msgspec.structs.replace(told, state="done", ended_at=now_ms())
        self._retired.append((self._clock() + _FAREWELL, shadow.name, old))
        _log.info("view %s is served from %s now", shadow.name, shadow.topic)

    def _retire(self) -> None:
        read = {topic for plan in self.kept for topic in plan.reads}
        due = [each for each in self._retired if each[0] <= self._clock() and each[2] not in read]
        for each in due:
            _, name, topic = each
            known, edition = known_topics(self._settings.log), edition_of(topic)
            ours = editions(self._app.name, name, known)
            delete_topics(self._settings.log, [t for t in ours if edition_of(t) == edition])
            if self._app.views[name].ledger:
                key, _ = edition_record(Edition(topic))
                self._tell(output_state_topic(self._app.name, name), key, None)
            self._retired.remove(each)
            shadow = self._shadows.get(name)
            kept = [self._active[name].topic, *([shadow.topic] if shadow else [])]
            delete_checkpoints(self._checkpoints, name, but=kept)

    def _give_up(self, shadow: _Shadow) -> None:
        if shadow.name in self._beside.views and self._has_failed(shadow):
            told = self._tell_of(shadow, self._beside.counts()[shadow.name])
            self._ended[shadow.name] = msgspec.structs.replace(told, ended_at=now_ms())
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
        self,
        names: Iterable[str],
        topics: Mapping[str, str],
        options: Mapping[str, str],
        *,
        replays: bool = False,
    ) -> dict[str, Query]:
        planner = Planner(
            *(self._spark, self._app, self._settings, self._partitions),
            topics=topics,
            options=options,
            replays=replays,
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


def _counts(query: Query) -> bool:
    """Whether it groups by a number of events, which only real-time mode counts one by one."""
    spec = query.plan.window_spec
    return spec is not None and spec.kind == "count"


def _done(past: LogRange | None, read: Mapping[str, Mapping[str, int]]) -> int:
    if past is None:
        return 0
    return sum(
        max(0, min(end, read.get(topic, {}).get(str(partition), start)) - start)
        for topic, span in past.offsets.items()
        for partition, (start, end) in span.items()
    )
