"""Builds each view's query and plans how it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta

from pyspark.sql import DataFrame, SparkSession

from millstream.analyze.lineage.joins_and_unions import is_time_bounded
from millstream.analyze.lineage.lineage import TracedQuery
from millstream.analyze.plan import Plan, ViewPlan
from millstream.analyze.planning import tables
from millstream.analyze.planning.build import build, mistake, trace_view
from millstream.analyze.planning.fingerprint import generation
from millstream.analyze.planning.planned_query import PlannedQuery
from millstream.analyze.planning.reading import Reading, ReadingRules, streams_of
from millstream.analyze.planning.result_columns import columns_of, window_of
from millstream.analyze.planning.run_mode import ModeDecision, decide_lineage, decide_mode
from millstream.analyze.planning.trigger_check import plan_output
from millstream.analyze.planning.window_spec import (
    describe_eviction,
    describe_trigger,
    late_by_event_time,
    late_by_window,
    window_spec,
)
from millstream.analyze.records.reader import kafka_options, parse_events, read_stream
from millstream.analyze.spark.catalyst import Catalyst, identity, named, spelled
from millstream.analyze.spark.python_workers import modules_of, ship_modules
from millstream.analyze.spark.session import start_session
from millstream.errors import PipelineError, PipelineErrors
from millstream.log.topic_names import stream_topic, view_topic
from millstream.pipeline.app import App
from millstream.pipeline.model import View
from millstream.settings import Settings
from millstream.syntax.duration import milliseconds
from millstream.syntax.names import suggest
from millstream.values.hidden_columns import FROM_HEADERS, POSITION


def plan(app: App, settings: Settings, topics: Mapping[str, str] | None = None) -> Plan:
    """The plan of an app, made with Spark but without Kafka; PipelineError if a view is wrong.

    `topics`: the topics of views that are not in their first edition.
    """
    spark = start_session(settings.analyze, slots=2, name=f"{app.name} plan")
    try:
        return Planner(spark, app, settings, topics=topics).plan()
    finally:
        spark.stop()


def enough_slots(app: App, settings: Settings, partitions: Callable[[str], int]) -> int:
    """A number of task slots that suffices for any queries of these views; idle ones are cheap."""
    per_view = [
        sum(partitions(stream_topic(app.name, stream)) for stream in streams_of(app, view))
        + sum(partitions(view_topic(app.name, each)) for each in view.inputs if each in app.views)
        for view in app.views.values()
    ]
    return sum(per_view) + len(per_view) * 3 * settings.analyze.shuffle_partitions + 2


class Planner:
    """Plans the views of one app on one session."""

    def __init__(
        self,
        spark: SparkSession,
        app: App,
        settings: Settings,
        partitions: Callable[[str], int] | None = None,
        *,
        topics: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
        replays: bool = False,
    ) -> None:
        """`topics`: the topics of views that are not in their first edition.
        `options`: more options of Spark's Kafka source.
        `replays`: the queries read up to the log's end in batches; then queries that were planned
        without it continue from their checkpoints."""
        ship_modules(spark, app)
        self._spark = spark
        self._app = app
        self._settings = settings
        self._partitions = partitions or (lambda topic: settings.log.partitions)
        self._options = {**kafka_options(settings.log), **(options or {})}
        self._rules = ReadingRules(app, settings, self._partitions, replays)
        self._view_topics = dict(topics or {})
        self._streams: dict[tuple[str, Reading], DataFrame] = {}
        self._results: dict[tuple[str, Reading], DataFrame] = {}  # as the user's queries give them
        self._queries: dict[str, PlannedQuery] = {}

    def plan(self) -> Plan:
        return Plan(self._app.name, tuple(query.plan for query in self.queries()))

    def queries(self) -> list[PlannedQuery]:
        """Every view's query, inputs before their readers; PipelineErrors has all mistakes."""
        errors: list[PipelineError] = []
        for view in self._app.views_in_order():
            # A view that reads a wrong one cannot be checked.
            inputs = [each for each in view.inputs if each in self._app.views]
            if view.name in self._queries or not all(each in self._queries for each in inputs):
                continue
            try:
                self._queries[view.name] = self._query(view)
            except PipelineError as error:
                errors.append(error)
        if errors:
            raise errors[0] if len(errors) == 1 else PipelineErrors(errors)
        return list(self._queries.values())

    def query(self, name: str) -> PlannedQuery:
        """One view's query; only the views that it reads are built besides."""
        if name not in self._app.views:
            raise PipelineError(
                f"the pipeline has no view {name!r}",
                remedy=suggest(name, self._app.views),
                file=self._app.location.file,
            )
        wanted = {name}
        for view in reversed(self._app.views_in_order()):
            if view.name in wanted:
                wanted |= set(view.inputs)
        for view in self._app.views_in_order():
            if view.name in wanted and view.name not in self._queries:
                self._queries[view.name] = self._query(view)
        return self._queries[name]

    def _query(self, view: View) -> PlannedQuery:
        first = Reading() if view.shed is None else Reading(headers=True, weighs=True)
        frame = self._build(view, first)
        traced = trace_view(view, frame)
        decision = decide_mode(view, traced.frame)
        if (reading := self._rules.choose(view, first, traced, decision)) != first:
            frame = self._build(view, reading)
            traced = trace_view(view, frame)
        if traced.counted is not None:
            self._check_count_window(view, traced, decision)
        if traced.late_by_event_time:
            _check_join_bounds(view, traced)
        lineage, lineage_reason = decide_lineage(traced, decision)
        rows = traced.frame
        if lineage in ("batch", "none"):
            rows = rows.select(*(named(each) for each in rows.columns if each != POSITION))
        key = None if view.key is None else spelled(view.key, rows.columns)
        spec = window_spec(traced, self._app)
        columns, window = columns_of(rows, traced.columns), window_of(rows, traced.columns)
        output = plan_output(view, traced, columns, window)
        upstream = [
            self._queries[each].plan.generation for each in view.inputs if each in self._queries
        ]
        shuffles = self._settings.analyze.shuffle_partitions
        identifying = [key, decision.mode, decision.output_mode, lineage, upstream, shuffles]
        fingerprints = [*map(repr, identifying), *([] if output is None else [output.fingerprint])]
        view_plan = ViewPlan(
            name=view.name,
            inputs=view.inputs,
            reads=self._topics_read(view),
            topic=self._topic(view.name),
            key=key,
            columns=columns,
            window=window,
            mode=decision.mode,
            output_mode=decision.output_mode,
            reason=decision.reason,
            lineage=lineage,
            lineage_reason=lineage_reason,
            slots=self._slots(decision),
            keep_ms=_optional_milliseconds(view.keep),
            generation=generation(
                rows, view.location.file, fingerprints, modules_of(self._app, view.location.file)
            ),
            description=view.description,
            window_spec=spec,
            late_by_window=late_by_window(traced, self._app, spec),
            late_by_event_time=late_by_event_time(traced, self._app),
            has_watermark=traced.has_watermark,
            trigger=describe_trigger(view, traced, decision.output_mode),
            eviction=describe_eviction(traced, spec, self._app, self._rules.slack(decision)),
            output=output,
            estimated=traced.estimated,
            sheds_after_ms=_optional_milliseconds(view.sheds_after),
        )
        has_batch_plan = traced.window_kind is not None and traced.window_kind.has_batch_plan
        batch_rows = trace_view(view, frame, batch=True).frame if has_batch_plan else rows
        return PlannedQuery(view, view_plan, rows, batch_rows)

    def _check_count_window(self, view: View, traced: TracedQuery, decision: ModeDecision) -> None:
        """PipelineError unless events are counted one by one, in an order that never differs."""
        assert traced.counted is not None
        if decision.mode != "real_time":
            raise mistake(
                view,
                "groups by a number of events, which only real-time mode counts one by one:"
                f" {decision.reason}",
                "leave out what keeps it from that, or mode='micro_batch'",
            )
        for stream in self._app.streams.values():
            topic = stream_topic(self._app.name, stream.name)
            has_partitions = topic in traced.sources and self._partitions(topic) > 1
            if has_partitions and stream.key not in traced.counted.keys:
                raise mistake(
                    view,
                    f"counts events of {stream.name!r}, of which one group's are in several"
                    " partitions, without an order in common",
                    f"group by the stream's key ({stream.key!r}), give the stream the key that you"
                    " group by, or set log.partitions to 1",
                )

    def _build(self, view: View, reading: Reading) -> DataFrame:
        """The rows of the user's query, without lineage."""
        if (view.name, reading) not in self._results:
            try:
                rows = build(self._spark, view, self._inputs(view, reading))
            except PipelineError as error:
                names_header = any(f"'{name}'" in error.message for name in FROM_HEADERS)
                if reading.headers or not names_header:
                    raise
                rows = build(self._spark, view, self._inputs(view, replace(reading, headers=True)))
            self._results[view.name, reading] = rows
        return self._results[view.name, reading]

    def _inputs(self, view: View, reading: Reading) -> dict[str, DataFrame]:
        return {name: self._input(view, name, reading) for name in view.inputs}

    def _input(self, view: View, name: str, reading: Reading) -> DataFrame:
        if name in self._app.streams:
            return self._stream(name, reading)
        upstream, topic = self._queries[name], self._topic(name)
        if reading.weighs and view.reads.get(name) == "changes":
            raise mistake(
                view,
                f"has shed, but reads the changes of {name!r}, each of which takes back another",
                "read the stream, or leave shed out",
            )
        options = self._options
        if upstream.plan.query_topic != topic:
            # Rows that a trigger shows are written in transactions, some of which are aborted.
            options = {**options, "kafka.isolation.level": "read_committed"}
        if view.reads.get(name) == "reference":
            return tables.reference(self._spark, upstream, topic, options)
        if upstream.plan.lineage == "revision":
            options = {**reading.options, **options}
            return tables.changes(read_stream(self._spark, topic, options), upstream)
        # Rows of one event each are computed again instead of read from the log, where a crash may
        # have repeated them.
        return self._build(self._app.views[name], reading)

    def _stream(self, name: str, reading: Reading) -> DataFrame:
        if (name, reading) not in self._streams:
            topic, stream = stream_topic(self._app.name, name), self._app.streams[name]
            options = {**reading.options, **self._options}
            source = read_stream(self._spark, topic, options, headers=reading.headers)
            slack = timedelta() if reading.slack is None else reading.slack + stream.ahead
            self._streams[name, reading] = parse_events(
                source, stream, slack=slack, time=reading.time, weighs=reading.weighs
            )
        return self._streams[name, reading]

    def _topics_read(self, view: View) -> tuple[str, ...]:
        topics: dict[str, None] = {}
        for name in view.inputs:
            if name in self._app.streams:
                topics[stream_topic(self._app.name, name)] = None
            elif (
                view.reads.get(name) == "reference"
                or self._queries[name].plan.lineage == "revision"
            ):
                topics[self._topic(name)] = None
            else:
                topics |= dict.fromkeys(self._queries[name].plan.reads)
        return tuple(topics)

    def _topic(self, view: str) -> str:
        return self._view_topics.get(view) or view_topic(self._app.name, view)

    def _slots(self, decision: ModeDecision) -> int:
        if decision.stages is None:
            return 1  # its tasks take turns
        scans = sum(self._partitions(topic) for topic in decision.stages.topics)
        return scans + sum(decision.stages.shuffle_tasks)


def _check_join_bounds(view: View, traced: TracedQuery) -> None:
    """PipelineError if a window over a join never ends, because its events wait without a bound."""
    if (window := traced.window) is None or window.time is None:
        return
    below, columns = window.aggregate.child(), {identity(window.attribute)}
    if not is_time_bounded(Catalyst.of(traced.frame), below, columns):
        raise mistake(
            view,
            "groups what it joins by a window that never ends: at any time an event may come that"
            " is joined with one of long ago",
            "bound the time between the two in the join's condition, as in"
            " b.at BETWEEN a.at AND a.at + INTERVAL 1 HOUR",
        )


def _optional_milliseconds(duration: timedelta | None) -> int | None:
    return None if duration is None else milliseconds(duration)
