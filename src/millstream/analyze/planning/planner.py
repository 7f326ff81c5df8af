"""Builds each view's query and decides how it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from pyspark.sql import DataFrame, SparkSession

from millstream.analyze.lineage.joins_and_unions import is_held
from millstream.analyze.lineage.lineage import Traced
from millstream.analyze.plan import Lineage, Plan, RunMode, ViewPlan
from millstream.analyze.planning import tables
from millstream.analyze.planning.build import build, follow, mistake
from millstream.analyze.planning.fingerprint import generation
from millstream.analyze.planning.result_columns import columns_of, spelled, window_of
from millstream.analyze.planning.trigger_check import plan_output
from millstream.analyze.planning.window_spec import (
    by_own_time,
    eviction,
    late_by,
    trigger,
    window_spec,
)
from millstream.analyze.records.reader import Time, events, records
from millstream.analyze.spark.catalyst import Catalyst, identity, items, name_of, named
from millstream.analyze.spark.python_workers import modules_of, ship_modules
from millstream.analyze.spark.realtime import (
    Refused,
    Stages,
    check_event_times,
    check_real_time,
    check_streaming,
)
from millstream.analyze.spark.remedies import remedy_for
from millstream.analyze.spark.session import start_session
from millstream.errors import PipelineError, PipelineErrors
from millstream.log.connection import spark_options
from millstream.log.settings import LogSettings
from millstream.log.topic_names import stream_topic, view_topic
from millstream.pipeline.app import App
from millstream.pipeline.model import View
from millstream.settings import Settings
from millstream.syntax.duration import milliseconds, parse_duration
from millstream.syntax.names import suggest
from millstream.values.hidden_columns import FROM_HEADERS, POSITION

# A query that may shed takes another share between two batches, and repeats one for it.
_AT_ONCE = 20_000
_ENDLESS = timedelta(days=100 * 365)
_REORDERING = ("Deduplicate", "Distinct", "Repartition", "Join", "RebalancePartitions")


@dataclass(frozen=True, slots=True)
class Query:
    """A view's query, ready to be started."""

    view: View
    plan: ViewPlan
    rows: DataFrame  # the user's columns and the hidden ones
    whole: DataFrame  # the same, for a batch over all that the topics have
    replays: bool = False  # up to where the log ends when it starts, and no further


@dataclass(frozen=True, slots=True)
class _Decision:
    mode: RunMode
    output_mode: str
    reason: str
    stages: Stages | None


@dataclass(frozen=True, slots=True)
class _Reading:
    """How a query's streams are read, as far as that depends on the query."""

    headers: bool = False
    slack: timedelta | None = None  # None: there is no window
    time: Time = "event"
    weighs: bool = False
    at_once: int | None = None  # records in one batch, at most; None: all that there are

    @property
    def bound(self) -> dict[str, str]:
        return {} if self.at_once is None else {"maxOffsetsPerTrigger": str(self.at_once)}


_PLAINLY = _Reading()


def plan(app: App, settings: Settings, topics: Mapping[str, str] | None = None) -> Plan:
    """What will run, found out with Spark but without Kafka; PipelineError if a view can't.

    `topics` holds the rows of views whose topic does not bear their name.
    """
    spark = start_session(settings.analyze, slots=2, name=f"{app.name} plan")
    try:
        return Planner(spark, app, settings, topics=topics).plan()
    finally:
        spark.stop()


def enough_slots(app: App, settings: Settings, partitions: Callable[[str], int]) -> int:
    """Slots that suffice for every view, whatever its query: waiting ones cost next to nothing."""
    per_view = [
        sum(partitions(stream_topic(app.name, stream)) for stream in _streams(app, view))
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
        """`topics` holds the rows of views whose topic does not bear their name; `options` are
        further ones of Spark's Kafka reader. `replays`: for batches over what the log has, after
        which a query goes on that was planned without."""
        ship_modules(spark, app)
        self._spark = spark
        self._app = app
        self._settings = settings
        self._partitions = partitions or (lambda topic: settings.log.partitions)
        self._options = {**kafka_options(settings.log), **(options or {})}
        self._replays = replays
        self._view_topics = dict(topics or {})
        self._streams: dict[tuple[str, _Reading], DataFrame] = {}
        self._results: dict[
            tuple[str, _Reading], DataFrame
        ] = {}  # rows as a view's user wrote them
        self._queries: dict[str, Query] = {}

    def plan(self) -> Plan:
        return Plan(self._app.name, tuple(query.plan for query in self.queries()))

    def queries(self) -> list[Query]:
        """Every view's query, inputs before those that read them; PipelineErrors tells all that is
        wrong in them."""
        errors: list[PipelineError] = []
        for view in self._app.views_in_order():
            if view.name in self._queries or not self._knows_inputs(view):
                continue
            try:
                self._queries[view.name] = self._query(view)
            except PipelineError as error:
                errors.append(error)
        if errors:
            raise errors[0] if len(errors) == 1 else PipelineErrors(errors)
        return list(self._queries.values())

    def _knows_inputs(self, view: View) -> bool:
        """Whether no view that it reads has a mistake, without which nothing can be said of it."""
        return all(each in self._queries for each in view.inputs if each in self._app.views)

    def query(self, name: str) -> Query:
        """One view's query; of the others, only those that it reads are built."""
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

    def _query(self, view: View) -> Query:
        first = _PLAINLY if view.shed is None else _Reading(headers=True, weighs=True)
        frame = self._build(view, first)
        traced = follow(view, frame)
        decision = self._decide(view, traced.frame)
        if (reading := self._reading(view, first, traced, decision)) != first:
            frame = self._build(view, reading)
            traced = follow(view, frame)
        if traced.counted is not None:
            self._check_count(view, traced, decision)
        if traced.by_own_time:
            _check_joins(view, traced)
        lineage, doubt = _lineage(traced, decision)
        rows = traced.frame
        if lineage in ("batch", "none"):
            rows = rows.select(*(named(each) for each in rows.columns if each != POSITION))
        key = None if view.key is None else spelled(view.key, rows.columns)
        topics = self._topics(view)
        spec = window_spec(traced, self._app)
        columns, window = columns_of(rows, traced.columns), window_of(rows, traced.columns)
        output = plan_output(view, traced, columns, window)
        upstream = [
            self._queries[each].plan.generation for each in view.inputs if each in self._queries
        ]
        return Query(
            view,
            ViewPlan(
                name=view.name,
                inputs=view.inputs,
                reads=topics,
                topic=self._topic(view.name),
                key=key,
                columns=columns,
                window=window,
                mode=decision.mode,
                output_mode="append" if decision.output_mode == "append" else "update",
                reason=decision.reason,
                lineage=lineage,
                doubt=doubt,
                slots=self._slots(decision),
                keep_ms=_optional_milliseconds(view.keep),
                generation=generation(
                    rows,
                    view.location.file,
                    [
                        *(key, decision.mode, decision.output_mode, lineage, upstream),
                        self._settings.analyze.shuffle_partitions,
                        *([] if output is None else [output]),
                    ],
                    modules_of(self._app, view.location.file),
                ),
                description=view.description,
                window_spec=spec,
                late_by=late_by(traced, self._app, spec),
                by_own_time=by_own_time(traced, self._app),
                is_timed=traced.is_timed,
                trigger=trigger(view, traced, decision.output_mode),
                eviction=eviction(traced, spec, self._app, self._slack(decision)),
                output=output,
                weighed=traced.weighed,
                sheds_after_ms=_optional_milliseconds(view.sheds_after),
            ),
            rows,
            rows if traced.counted is None else follow(view, frame, whole=True).frame,
        )

    def _check_count(self, view: View, traced: Traced, decision: _Decision) -> None:
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
            spread = topic in traced.sources and self._partitions(topic) > 1
            if spread and stream.key not in traced.counted.keys:
                raise mistake(
                    view,
                    f"counts events of {stream.name!r}, of which one group's are in several"
                    " partitions, without an order in common",
                    f"group by the stream's key ({stream.key!r}), give the stream the key that you"
                    " group by, or set log.partitions to 1",
                )

    def _reading(
        self, view: View, plain: _Reading, traced: Traced, decision: _Decision
    ) -> _Reading:
        """How to read where some may be late: with what tells that, and patience for the state."""
        time = None if traced.window is None else traced.window.time
        reading = replace(plain, at_once=self._at_once(view, time, decision))
        judges_alone = bool(by_own_time(traced, self._app))
        if time is None and not judges_alone and not traced.windows:
            return reading
        time = time or "event"
        headers = plain.headers or time == "event" or judges_alone
        slack = self._slack(decision)
        if judges_alone:
            # Spark takes what is later than its watermark; an event that is just as far as the
            # stream was is in time.
            slack += timedelta(milliseconds=1)
        if self._forgets_nothing(view, time, decision):
            slack = _ENDLESS
        return replace(reading, headers=headers, slack=slack, time=time)

    def _at_once(self, view: View, time: Time | None, decision: _Decision) -> int | None:
        most = self._settings.analyze.batch_events
        if self._forgets_nothing(view, time, decision):
            return most
        is_in_batches = self._replays or decision.mode == "micro_batch"
        if not is_in_batches or self._may_overtake(view, time):
            return None
        return most if self._replays or view.sheds_after is None else min(most, _AT_ONCE)

    def _forgets_nothing(self, view: View, time: Time | None, decision: _Decision) -> bool:
        """Whether it replays in pieces, though a piece may overtake another, and so must keep all
        state to its end. Rows that come only when they are final could not be had then."""
        is_shown_at_once = time is not None and decision.output_mode == "update"
        return self._replays and is_shown_at_once and self._may_overtake(view, time)

    def _may_overtake(self, view: View, time: Time | None) -> bool:
        """Whether a piece of what is behind may hold one partition's newer events beside another's
        older ones: Spark's watermark would then go with the newer, and the older be left out."""
        return any(
            self._partitions(stream_topic(self._app.name, name)) > 1
            for name in _streams(self._app, view)
            if time == "stream" or self._app.streams[name].event_time
        )

    def _slack(self, decision: _Decision) -> timedelta:
        # Rows that come only when they are final must not wait for longer than they have to.
        patient = decision.output_mode == "update"
        return parse_duration(self._settings.analyze.slack) if patient else timedelta()

    def _build(self, view: View, reading: _Reading = _PLAINLY) -> DataFrame:
        if (view.name, reading) not in self._results:
            self._results[view.name, reading] = self._built(view, reading)
        return self._results[view.name, reading]

    def _built(self, view: View, reading: _Reading) -> DataFrame:
        def inputs(reading: _Reading) -> dict[str, DataFrame]:
            return {name: self._input(view, name, reading) for name in view.inputs}

        try:
            return build(self._spark, view, inputs(reading))
        except PipelineError as error:
            if reading.headers or not any(f"'{name}'" in error.message for name in FROM_HEADERS):
                raise
            return build(self._spark, view, inputs(replace(reading, headers=True)))

    def _input(self, view: View, name: str, reading: _Reading) -> DataFrame:
        if name in self._app.streams:
            return self._stream(name, reading)
        upstream, topic = self._queries[name], self._topic(name)
        if reading.weighs and view.reads.get(name) == "changes":
            raise mistake(
                view,
                f"has shed, but reads the changes of {name!r}, each of which takes back another",
                "read the stream, or leave shed out",
            )
        # What is shown is written in transactions, of which some are not committed.
        options = {**self._options, "kafka.isolation.level": "read_committed"}
        if upstream.plan.written == upstream.plan.topic:
            options = self._options
        if view.reads.get(name) == "reference":
            return tables.reference(self._spark, upstream, topic, options)
        if upstream.plan.lineage == "revision":
            options = {**reading.bound, **options}
            return tables.changes(records(self._spark, topic, options), upstream)
        # Rows that are made from one event each are made again rather than read back from the log,
        # where a crash may have repeated them.
        return self._build(self._app.views[name], reading)

    def _stream(self, name: str, reading: _Reading) -> DataFrame:
        if (name, reading) not in self._streams:
            topic, stream = stream_topic(self._app.name, name), self._app.streams[name]
            options = {**reading.bound, **self._options}
            source = records(self._spark, topic, options, headers=reading.headers)
            slack = timedelta() if reading.slack is None else reading.slack + stream.ahead
            self._streams[name, reading] = events(
                source, stream, slack=slack, time=reading.time, weighs=reading.weighs
            )
        return self._streams[name, reading]

    def _topics(self, view: View) -> tuple[str, ...]:
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

    def _decide(self, view: View, frame: DataFrame) -> _Decision:
        if not frame.isStreaming:
            raise mistake(
                view,
                "does not use its input as a stream",
                "build the result from the DataFrame that the function is given",
            )
        looked_up = [name for name, how in view.reads.items() if how == "reference"]
        why_not = ""
        if view.mode == "auto" and looked_up:
            why_not = (
                f"it looks up {looked_up[0]}, of which a real-time query would see no change"
                " until its next checkpoint"
            )
        elif view.mode != "micro_batch":
            try:
                stages = check_real_time(frame)
            except Refused as refused:
                why_not = str(refused)
            else:
                reason = "asked for" if view.mode == "real_time" else "Spark can run it so"
                return _Decision("real_time", "update", reason, stages)
        if view.mode == "real_time":
            raise mistake(
                view,
                f"cannot run in real-time mode: {why_not}",
                'leave mode="real_time" out to let it run in micro-batches',
            )
        return self._micro_batch(view, frame, why_not or "asked for")

    def _micro_batch(self, view: View, frame: DataFrame, reason: str) -> _Decision:
        refusals = []
        for output_mode in ("update", "append"):
            try:
                check_streaming(frame, output_mode)
                check_event_times(frame, output_mode)
            except Refused as refused:
                refusals.append(str(refused))
                continue
            if output_mode == "append" and "joins" not in reason:
                reason += "; its rows come when they are final"
            return _Decision("micro_batch", output_mode, reason, None)
        why = next((each for each in refusals if remedy_for(view, each)), refusals[0])
        raise mistake(view, f"cannot run as a continuous query: {why}", remedy_for(view, why))

    def _slots(self, decision: _Decision) -> int:
        if decision.stages is None:
            return 1  # its tasks take turns
        scans = sum(self._partitions(topic) for topic in decision.stages.topics)
        return scans + sum(decision.stages.shuffle_tasks)


def kafka_options(log: LogSettings) -> dict[str, str]:
    """How Spark reaches Kafka; for planning alone, any address does."""
    return spark_options(log if log.bootstrap else LogSettings(bootstrap="127.0.0.1:1"))


def _check_joins(view: View, traced: Traced) -> None:
    """PipelineError if rows are grouped by a window that another stream's events never leave."""
    if (window := traced.window) is None or window.time is None:
        return
    below, columns = window.aggregate.child(), {identity(window.attribute)}
    if not is_held(Catalyst.of(traced.frame), below, columns):
        raise mistake(
            view,
            "groups what it joins by a window that never ends: at any time an event may come that"
            " is joined with one of long ago",
            "bound the time between the two in the join's condition, as in"
            " b.at BETWEEN a.at AND a.at + INTERVAL 1 HOUR",
        )


def _optional_milliseconds(duration: timedelta | None) -> int | None:
    return None if duration is None else milliseconds(duration)


def _streams(app: App, view: View) -> Iterator[str]:
    """The streams that a view may read, through other views too."""
    for name in view.inputs:
        if name in app.streams:
            yield name
        else:
            yield from _streams(app, app.views[name])


def _lineage(traced: Traced, decision: _Decision) -> tuple[Lineage, str]:
    if traced.lineage == "revision":
        return "revision", ""
    doubt = traced.lost
    if traced.lineage == "position":
        reorders = (
            decision.stages.reorders if decision.stages is not None else _may_reorder(traced.frame)
        )
        if not reorders:
            return "position", ""
        doubt = "it shuffles rows over several tasks, which reorders them"
    return ("batch" if decision.mode == "micro_batch" else "none"), doubt


def _may_reorder(frame: DataFrame) -> bool:
    if frame.sparkSession.conf.get("spark.sql.shuffle.partitions") == "1":
        return False
    pending = [Catalyst.of(frame).analysed(frame)]
    while pending:
        node = pending.pop()
        if name_of(node).startswith(_REORDERING):
            return True
        pending.extend(items(node.children()))
    return False
