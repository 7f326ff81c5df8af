"""Rebuilds views on request, or when the pipeline changed, and lets them replace the served ones.

A view's description says which topic holds its rows. Writing that one record swaps the editions.
Everything before it can be repeated after a crash; everything after it is cleaning up.

Before the swap the shadow's rows get their states: a row that is final in the old edition is final
or corrected in the new one (`takeover`). Meanwhile no more rows of the old edition become final.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
from confluent_kafka import KafkaException
from pyspark.sql import SparkSession

from millstream.analyze.plan import ViewPlan
from millstream.analyze.planning.editions import describe_views, query_topic_of
from millstream.analyze.query.queries import Queries
from millstream.analyze.rebuild.rebuildable import check_rebuildable, why_not
from millstream.analyze.rebuild.requests import RebuildRequest, RequestReader
from millstream.analyze.rebuild.shadows import Shadow, Shadows, check_slots
from millstream.analyze.rebuild.takeover import Takeover
from millstream.analyze.recovery.checkpoint import delete_checkpoints
from millstream.analyze.row_state.committed_watermarks import final_until
from millstream.analyze.row_state.row_state import has_row_states
from millstream.analyze.spark.session import task_slots
from millstream.analyze.triggers.ledger import Edition
from millstream.analyze.triggers.processor import edition_record
from millstream.errors import LogError, MillstreamError
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
from millstream.settings import Settings
from millstream.values.clock import now_ms
from millstream.values.report import RebuildStatus, ViewCounts

_log = logging.getLogger(__name__)
_CHECK_SECONDS = 0.5  # between two checks whether a shadow can take over: they ask Kafka
_RETIRE_SECONDS = 5.0  # for which an old topic stays for servers that still read it


class Rebuilds:
    """The rebuilds of one `analyze`. Call `tick` from the thread that calls the queries'."""

    def __init__(
        self,
        spark: SparkSession,
        app: App,
        settings: Settings,
        checkpoints: Path,
        plans: Iterable[ViewPlan],
        queries: Queries,
        *,
        write: Callable[[str, str, bytes | None], None],
        is_final_until: Callable[[str, int], bool],
        partitions: Callable[[str], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`plans` are the served views, and `queries` run them.

        `write` writes a record, by topic, key and value, and returns when the log has it.
        `is_final_until` says of a shadow, by its view, whether the rows of all windows that ended
        by then are final, and are shown as final.
        """
        self._spark, self._app, self._settings = spark, app, settings
        self._checkpoints, self._queries = checkpoints, queries
        self._write, self._is_final_until, self._clock = write, is_final_until, clock
        self.shadows = Shadows(spark, app, settings, checkpoints, partitions, clock)
        self._served = {plan.name: plan for plan in plans}
        self._ended: dict[str, RebuildStatus] = {}  # the last one of each view
        self._checked = 0.0
        self._retired: list[tuple[float, str, str]] = []  # when to delete, view, topic
        self._reader = RequestReader(settings.log, app.name)
        self._requests = dict(self._reader.open)

    @property
    def served(self) -> list[ViewPlan]:
        """The views as they are served."""
        return list(self._served.values())

    @property
    def running(self) -> list[ViewPlan]:
        """The served views whose queries run: not those whose query was changed."""
        return [plan for plan in self.served if plan.name in self._queries.views]

    @property
    def leaving(self) -> set[str]:
        """The views whose old edition is about to be replaced."""
        return {shadow.name for shadow in self.shadows if self._may_take_over(shadow)}

    def add_to(self, counts: dict[str, ViewCounts]) -> dict[str, ViewCounts]:
        """Add the progress of the views' rebuilds to their counts."""
        for name, ended in self._ended.items():
            counts.setdefault(name, ViewCounts()).rebuild = ended
        for name, report in self.shadows.reports().items():
            counts.setdefault(name, ViewCounts(state="starting")).rebuild = report
        return counts

    def can(self, view: str) -> bool:
        """Whether a view and those that read its rows can be rebuilt."""
        views = map(self._app.views.__getitem__, self._with_readers({view}))
        return all(not why_not(self._app, each) for each in views)

    def begin(self, names: Iterable[str], request: str = "", since: int | None = None) -> None:
        """RebuildStatus these views, and those that read their rows from the log."""
        names = self._with_readers(set(names))
        for name in names:
            check_rebuildable(self._app, self._app.views[name])
        ensure_topics(self._app, self._settings.log)  # a stream's topic may have been deleted
        topics = {name: plan.topic for name, plan in self._served.items()}
        topics |= {name: self._next_topic(name) for name in names}
        fresh = self.shadows.plan(names, topics, request, since)
        plans = (*self.running, *(shadow.query.plan for shadow in self.shadows))
        check_slots(plans, [shadow.query.plan for shadow in fresh], task_slots(self._spark))
        for shadow in fresh:
            self.shadows.add(shadow)
            self._ended.pop(shadow.name, None)

    def tick(self) -> None:
        """Handle new requests, and take the next step of each rebuild, once Kafka answers."""
        self._handle_requests()
        self.shadows.queries.tick()
        try:
            self.shadows.advance()
            if self._clock() - self._checked >= _CHECK_SECONDS:
                self._checked = self._clock()
                self._take_over()
            self._delete_retired()
        except (LogError, KafkaException) as error:
            _log.warning("rebuilding waits for Kafka: %s", error)

    def clean_up(self) -> None:
        """Remove what former editions left, once it is known what is being rebuilt."""
        self._handle_requests()
        known = known_topics(self._settings.log)
        for name in self._served:
            used = self._used_topics(name)
            delete_checkpoints(self._checkpoints, name, but=used)
            unused = editions(self._app.name, name, known, but=map(edition_of, used))
            delete_topics(self._settings.log, unused)

    def close(self, patience: float) -> None:
        self._reader.close()
        self.shadows.close(patience)

    # Requests.

    def _handle_requests(self) -> None:
        for view, request in self._reader.take().items():
            before = self._requests.get(view)
            if not request.cancel:
                self._requests[view] = request
                self._start_request(view, request, before)
            elif before is not None and before.id != request.id:
                self._restore_request(view, before)  # the one to cancel was refused
            else:
                self._requests[view] = request
                for shadow in self.shadows.of_request(request.id):
                    self._give_up(shadow)
                self._end_request(view)

    def _start_request(
        self, view: str, request: RebuildRequest, before: RebuildRequest | None
    ) -> None:
        if self.shadows.of_request(request.id) or view not in self._served:
            return
        self._ended.pop(view, None)
        try:
            self._begin_or_join(view, request, before)
        except MillstreamError as error:
            if before is not None and self.shadows.of_request(before.id):
                self._restore_request(view, before)
                return
            self._ended[view] = RebuildStatus(
                "failed",
                request.id,
                error=str(error),
                since=request.since,
                started_at=now_ms(),
                ended_at=now_ms(),
            )

    def _begin_or_join(
        self, view: str, request: RebuildRequest, before: RebuildRequest | None
    ) -> None:
        """Begin a rebuild, or join the one that runs already; MillstreamError if neither can be."""
        involved = self._with_readers({view})
        running = [shadow for shadow in self.shadows if shadow.name in involved]
        if not running:
            self.begin([view], request.id, request.since)
        elif any(not shadow.request for shadow in running):
            self._reader.defer(view, request)  # changes of the pipeline come first
        elif before is not None and before.since == request.since:
            # The earlier sender is gone, or it would have cancelled its request.
            for shadow in self.shadows.of_request(before.id):
                shadow.request = request.id
        else:
            raise MillstreamError(
                f"view {view} is being rebuilt already, from another time or with its readers",
                remedy="wait until that is done; `millstream status` shows it",
            )

    def _restore_request(self, view: str, request: RebuildRequest) -> None:
        """Continue with the earlier request, after a crash too, and show that to later senders."""
        self._requests[view] = request
        self._write(rebuilds_topic(self._app.name), view, msgspec.json.encode(request))

    def _end_request(self, view: str) -> None:
        del self._requests[view]
        self._write(rebuilds_topic(self._app.name), view, None)

    def _give_up(self, shadow: Shadow) -> None:
        if shadow.name in self.shadows.queries.views and self.shadows.has_failed(shadow):
            report = self.shadows.reports()[shadow.name]
            self._ended[shadow.name] = msgspec.structs.replace(report, ended_at=now_ms())
        self.shadows.remove(shadow)
        self._retire(shadow.name, shadow.topic)

    # Takeover.

    def _requested_view(self, shadow: Shadow) -> str:
        """The view that the shadow's request names."""
        views = (view for view, each in self._requests.items() if each.id == shadow.request)
        return next(views, "")

    def _group(self, shadow: Shadow) -> list[Shadow]:
        """The shadows that take over together."""
        return self.shadows.of_request(shadow.request) if shadow.request else [shadow]

    def _may_take_over(self, shadow: Shadow) -> bool:
        """Whether all shadows of the group are ready, and the request allows it."""
        request = self._requests.get(self._requested_view(shadow))
        is_allowed = not shadow.request or (request is not None and request.go)
        return is_allowed and all(each.state == "ready" for each in self._group(shadow))

    def _take_over(self) -> None:
        for shadow in self.shadows:
            if self.shadows.get(shadow.name) is not shadow or not self._may_take_over(shadow):
                continue
            group = self._group(shadow)
            if not all([self._has_final_rows(each) for each in group]):  # ask each of them
                continue
            view = self._requested_view(shadow)
            for each in group:
                self._swap(each)
            if shadow.request:
                self._end_request(view)

    def _has_final_rows(self, shadow: Shadow) -> bool:
        """Whether every row that is final in the old edition is final or corrected in this one."""
        plan, log = shadow.query.plan, self._settings.log
        if not has_row_states(plan):
            return self._is_final_until(shadow.name, 0)
        described = describe_views(self._app.name, log).get(shadow.name)
        old = "" if described is None else query_topic_of(self._app.name, described)
        if old not in known_topics(log):
            return self._is_final_until(shadow.name, 0)
        if not self._is_final_until(shadow.name, final_until(log, self._app.name, old)):
            return False
        if shadow.takeover is None and not shadow.is_marked:
            shadow.takeover = Takeover(log, plan, old)
        if shadow.takeover is not None and not shadow.takeover.is_alive():
            error, shadow.takeover = shadow.takeover.error, None
            shadow.is_marked = error is None
            if error is not None:
                _log.warning("view %s waits to take over: %s", shadow.name, error)
            return False  # until the corrected rows are shown, too
        return shadow.is_marked

    def _swap(self, shadow: Shadow) -> None:
        old, report = self._served[shadow.name].topic, self.shadows.report(shadow, None)
        if self._app.views[shadow.name].ledger:
            edition = Edition(shadow.topic, shadow.whole_from)
            self._write(output_state_topic(self._app.name, shadow.name), *edition_record(edition))
        description = msgspec.json.encode(shadow.query.plan.describe())
        self._write(views_topic(self._app.name), shadow.name, description)
        self._served[shadow.name] = shadow.query.plan
        self._queries.take_over(shadow.name, self.shadows.queries)
        self.shadows.remove(shadow)
        self._ended[shadow.name] = msgspec.structs.replace(report, state="done", ended_at=now_ms())
        self._retire(shadow.name, old)
        _log.info("view %s is served from %s now", shadow.name, shadow.topic)

    # Editions.

    def _retire(self, view: str, topic: str) -> None:
        self._retired.append((self._clock() + _RETIRE_SECONDS, view, topic))

    def _delete_retired(self) -> None:
        read = {topic for plan in self.running for topic in plan.reads}
        for each in list(self._retired):
            due, name, topic = each
            if due > self._clock() or topic in read:
                continue
            known, edition = known_topics(self._settings.log), edition_of(topic)
            ours = editions(self._app.name, name, known)
            delete_topics(self._settings.log, [t for t in ours if edition_of(t) == edition])
            if self._app.views[name].ledger:
                key, _ = edition_record(Edition(topic))
                self._write(output_state_topic(self._app.name, name), key, None)
            self._retired.remove(each)
            delete_checkpoints(self._checkpoints, name, but=self._used_topics(name))

    def _used_topics(self, view: str) -> list[str]:
        shadow = self.shadows.get(view)
        return [self._served[view].topic, *([shadow.topic] if shadow else [])]

    def _next_topic(self, view: str) -> str:
        """A topic that no query writes to, not even one that is just ending."""
        used = [self._served[view].topic, *(t for _, name, t in self._retired if name == view)]
        return edition_topic(self._app.name, view, 1 + max(map(edition_of, used)))

    def _with_readers(self, names: set[str]) -> list[str]:
        """The views, and those that read one of them as a table, inputs first."""
        topics = {self._served[name].topic for name in names}
        for view in self._app.views_in_order():
            plan = self._served[view.name]
            if topics & set(plan.reads):
                names.add(view.name)
                topics.add(plan.topic)
        return [view.name for view in self._app.views_in_order() if view.name in names]
