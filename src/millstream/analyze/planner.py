"""Builds each view's query and decides how it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType, TimestampType

from millstream.analyze import tables
from millstream.analyze.build import build, check_key, mistake
from millstream.analyze.catalyst import Catalyst, items, name_of, named
from millstream.analyze.fingerprint import generation
from millstream.analyze.lineage import Traced, trace
from millstream.analyze.plan import Lineage, Plan, RunMode, ViewPlan
from millstream.analyze.reader import POSITION, events, records
from millstream.analyze.realtime import Refused, Stages, check_real_time, check_streaming
from millstream.analyze.session import start_session
from millstream.app import App
from millstream.audit import Column
from millstream.errors import PipelineError
from millstream.log.connection import spark_options
from millstream.log.settings import LogSettings
from millstream.log.topics import stream_topic, view_topic
from millstream.model import View
from millstream.settings import Settings

_REORDERING = ("Deduplicate", "Distinct", "Repartition", "Join", "RebalancePartitions")


@dataclass(frozen=True, slots=True)
class Query:
    """A view's query, ready to be started."""

    view: View
    plan: ViewPlan
    rows: DataFrame  # the user's columns and the hidden ones


@dataclass(frozen=True, slots=True)
class _Decision:
    mode: RunMode
    output_mode: str
    reason: str
    stages: Stages | None


def plan(app: App, settings: Settings) -> Plan:
    """What will run, found out with Spark but without Kafka; PipelineError if a view can't."""
    spark = start_session(settings.analyze, slots=2, name=f"{app.name} plan")
    try:
        return Planner(spark, app, settings).plan()
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
    ) -> None:
        self._spark = spark
        self._app = app
        self._settings = settings
        self._partitions = partitions or (lambda topic: settings.log.partitions)
        self._options = kafka_options(settings.log)
        self._streams: dict[tuple[str, bool], DataFrame] = {}
        self._results: dict[str, DataFrame] = {}  # a view's rows as its user wrote them
        self._queries: dict[str, Query] = {}

    def plan(self) -> Plan:
        return Plan(self._app.name, tuple(query.plan for query in self.queries()))

    def queries(self) -> list[Query]:
        """Every view's query, inputs before those that read them."""
        for view in self._app.views_in_order():
            if view.name not in self._queries:
                self._queries[view.name] = self._query(view)
        return list(self._queries.values())

    def _query(self, view: View) -> Query:
        frame = self._build(view)
        self._results[view.name] = frame
        traced = trace(frame, view.key)
        check_key(view, traced)
        decision = self._decide(view, traced.frame)
        lineage, doubt = _lineage(traced, decision)
        rows = traced.frame
        if lineage in ("batch", "none"):
            rows = rows.select(*(named(each) for each in rows.columns if each != POSITION))
        key = None if view.key is None else tuple(_spelled(view, rows.columns))
        topics = self._topics(view)
        upstream = [
            self._queries[each].plan.generation for each in view.inputs if each in self._queries
        ]
        return Query(
            view,
            ViewPlan(
                name=view.name,
                inputs=view.inputs,
                reads=topics,
                topic=view_topic(self._app.name, view.name),
                key=key,
                columns=_columns(rows, traced.columns),
                window=_window(rows, traced.columns),
                mode=decision.mode,
                output_mode="append" if decision.output_mode == "append" else "update",
                reason=decision.reason,
                lineage=lineage,
                doubt=doubt,
                slots=self._slots(decision),
                keep_ms=None if view.keep is None else view.keep // timedelta(milliseconds=1),
                generation=generation(
                    rows,
                    view.place.file,
                    [
                        *(key, decision.mode, decision.output_mode, lineage, upstream),
                        self._settings.analyze.shuffle_partitions,
                    ],
                ),
                description=view.description,
            ),
            rows,
        )

    def _build(self, view: View) -> DataFrame:
        def inputs(headers: bool) -> dict[str, DataFrame]:
            return {name: self._input(view, name, headers) for name in view.inputs}

        try:
            return build(self._spark, view, inputs(headers=False))
        except PipelineError as error:
            if "'_id'" not in error.message:
                raise
            return build(self._spark, view, inputs(headers=True))

    def _input(self, view: View, name: str, headers: bool) -> DataFrame:
        if name in self._app.streams:
            return self._stream(name, headers)
        upstream, topic = self._queries[name], view_topic(self._app.name, name)
        if view.reads.get(name) == "reference":
            return tables.reference(self._spark, upstream, topic, self._options)
        if upstream.plan.lineage == "revision":
            return tables.changes(records(self._spark, topic, self._options), upstream)
        # Rows that are made from one event each are made again rather than read back from the log,
        # where a crash may have repeated them.
        return self._results[name]

    def _stream(self, name: str, headers: bool) -> DataFrame:
        if (name, headers) not in self._streams:
            topic = stream_topic(self._app.name, name)
            source = records(self._spark, topic, self._options, headers=headers)
            self._streams[name, headers] = events(source, self._app.streams[name])
        return self._streams[name, headers]

    def _topics(self, view: View) -> tuple[str, ...]:
        topics: dict[str, None] = {}
        for name in view.inputs:
            if name in self._app.streams:
                topics[stream_topic(self._app.name, name)] = None
            elif (
                view.reads.get(name) == "reference"
                or self._queries[name].plan.lineage == "revision"
            ):
                topics[view_topic(self._app.name, name)] = None
            else:
                topics |= dict.fromkeys(self._queries[name].plan.reads)
        return tuple(topics)

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
            except Refused as refused:
                refusals.append(str(refused))
                continue
            if output_mode == "append" and "joins" not in reason:
                reason += "; its rows come when they are final"
            return _Decision("micro_batch", output_mode, reason, None)
        raise mistake(view, f"cannot run as a continuous query: {refusals[0]}")

    def _slots(self, decision: _Decision) -> int:
        if decision.stages is None:
            return 1  # its tasks take turns
        scans = sum(self._partitions(topic) for topic in decision.stages.topics)
        return scans + sum(decision.stages.shuffle_tasks)


def kafka_options(log: LogSettings) -> dict[str, str]:
    """How Spark reaches Kafka; for planning alone, any address does."""
    return spark_options(log if log.bootstrap else LogSettings(bootstrap="127.0.0.1:1"))


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


def _columns(rows: DataFrame, names: tuple[str, ...]) -> tuple[Column, ...]:
    types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    return tuple(Column(name, types[name]) for name in names)


def _window(rows: DataFrame, names: tuple[str, ...]) -> str | None:
    for field in rows.schema.fields:
        if (
            field.name in names
            and isinstance(field.dataType, StructType)
            and field.dataType.names == ["start", "end"]
            and all(isinstance(each.dataType, TimestampType) for each in field.dataType.fields)
        ):
            return field.name
    return None


def _spelled(view: View, columns: list[str]) -> Iterator[str]:
    """The key's columns as the result spells them: Spark ignores case."""
    for name in view.key or ():
        yield next(each for each in columns if each.lower() == name.lower())
