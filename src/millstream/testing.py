"""Tests your own pipeline: runs it over a list of events, without Kafka.

    from millstream.testing import run

    views = run("pipeline.py", {"rsvps": [{"city": "Bern"}, {"city": "Bern"}]})
    assert views["by_city"] == [{"city": "Bern", "n": 2}]

Rows are as clients get them: JSON values, times as RFC 3339 text in UTC, windows with `start` and
`end`. A view with a key has the newest row of each key, in the order of the keys; one without key
has its rows in the order of the events. The events count as complete and in time: no row expires,
and a view that reads another one's changes sees its last rows only. Use `Logged` for an event that
arrived late, or from a clock that is ahead:

    late = Logged({"city": "Bern", "at": "2026-11-16T10:00:30Z"}, watermark="2026-11-16T10:05:00Z")
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from millstream.analyze.planning.build import build, trace_view
from millstream.analyze.records.reader import parse_events
from millstream.analyze.records.writer import encode
from millstream.analyze.settings import AnalyzeSettings
from millstream.analyze.spark.python_workers import ship_modules
from millstream.analyze.spark.session import start_session
from millstream.errors import InvalidEvent, PipelineError
from millstream.pipeline.app import App
from millstream.pipeline.load import load
from millstream.pipeline.model import Stream, View
from millstream.schema.scalars import MILLISECONDS_FROM
from millstream.syntax.names import suggest
from millstream.values.event import SAMPLED, WATERMARK
from millstream.values.hidden_columns import ERROR, POSITION

Row = dict[str, Any]
Moment = datetime | str  # with its zone; as text, in RFC 3339


@dataclass(frozen=True, slots=True)
class Logged:
    """An event with the metadata that the log stores.

    `received_at` is when a collector received it; by default now, or its event time if that is
    later. `watermark` is for an event that arrived out of order: its stream's watermark before it.
    Windows that ended at least the stream's lateness before the watermark do not count the event.
    `sampled` is the share of events that the collector kept, if it shed some.
    """

    event: Mapping[str, Any] | str | bytes
    received_at: Moment | None = None
    watermark: Moment | None = None
    sampled: float | None = None


Event = Mapping[str, Any] | str | bytes | Logged  # an object, or its JSON

_RECORD = """value BINARY, partition INT, offset BIGINT, timestamp TIMESTAMP,
    headers ARRAY<STRUCT<key: STRING, value: BINARY>>"""


def run(pipeline: App | Path | str, sent: Mapping[str, Iterable[Event]]) -> dict[str, list[Row]]:
    """The rows of each view after these events of each stream.

    Rows of a view with `shed` also have `_error`, the errors of their estimates.
    InvalidEvent for an event that a collector would reject; PipelineError for a mistake in the
    pipeline. The first call starts Spark, which takes some seconds; later calls reuse it.
    """
    app = pipeline if isinstance(pipeline, App) else load(Path(pipeline))
    app.check()
    for name in sent:
        if name not in app.streams:
            raise PipelineError(f"there is no stream {name!r}", remedy=suggest(name, app.streams))
    spark = SparkSession.getActiveSession() or start_session(AnalyzeSettings(), 2, "testing")
    ship_modules(spark, app)
    weighs = any(view.shed is not None for view in app.views.values())
    frames: dict[str, DataFrame] = {
        name: parse_events(_records(spark, stream, sent.get(name, ())), stream, weighs=weighs)
        for name, stream in app.streams.items()
    }
    views = {}
    for view in app.views_in_order():
        frames[view.name] = build(spark, view, {name: frames[name] for name in view.inputs})
        views[view.name] = _rows(view, frames[view.name])
    return views


def _records(spark: SparkSession, stream: Stream, sent: Iterable[Event]) -> DataFrame:
    """The events as Kafka records."""
    validator, now = stream.validator(), datetime.now(UTC)
    rows: list[tuple[Any, ...]] = []
    for offset, event in enumerate(sent):
        logged = event if isinstance(event, Logged) else Logged(event)
        value = _encode(logged.event)
        try:
            validator.check(value)
        except InvalidEvent as error:
            message = f"event {offset} of stream {stream.name!r}: {error.message}"
            raise InvalidEvent(message, field=error.field, remedy=error.remedy) from None
        if logged.received_at is not None:
            received = _moment(logged.received_at)
        else:
            received = max(now, _event_time(value, stream) or now)
        rows.append((bytearray(value), 0, offset, received, _headers(logged)))
    # One partition: else Spark makes one per slot, each with almost nothing to do.
    return spark.createDataFrame(rows, _RECORD).coalesce(1)


def _headers(logged: Logged) -> list[tuple[str, bytearray]]:
    found = []
    if logged.watermark is not None:
        milliseconds = round(_moment(logged.watermark).timestamp() * 1000)
        found.append((WATERMARK, bytearray(str(milliseconds).encode())))
    if logged.sampled is not None:
        found.append((SAMPLED, bytearray(f"{logged.sampled:.4g}".encode())))
    return found


def _event_time(value: bytes, stream: Stream) -> datetime | None:
    written = json.loads(value).get(stream.event_time) if stream.event_time else None
    if isinstance(written, int):
        return datetime.fromtimestamp(written / (1000 if written >= MILLISECONDS_FROM else 1), UTC)
    return None if written is None else _moment(written)


def _moment(moment: Moment) -> datetime:
    return datetime.fromisoformat(moment) if isinstance(moment, str) else moment


def _encode(event: Mapping[str, Any] | str | bytes) -> bytes:
    match event:
        case bytes():
            return event
        case str():
            return event.encode()
        case _:
            return json.dumps(event).encode()


def _rows(view: View, frame: DataFrame) -> list[Row]:
    traced = trace_view(view, frame)
    found = [
        (row["key"], json.loads(row["value"])) for row in encode(traced.frame, view.key).collect()
    ]
    if traced.lineage == "position":
        found.sort(key=lambda each: _sort_key(each[1][POSITION]))
    if view.key is not None:
        found = sorted(dict(found).items())
    names = (*traced.columns, *([ERROR] if traced.estimated else ()))
    return [{name: row[name] for name in names} for _, row in found]


def _sort_key(position: Row) -> tuple[str, int, int]:
    return position["source"], position["offset"], position["row"]
