"""Stores each stream's schema in the log, and refuses a change that breaks old events."""

from __future__ import annotations

import logging

import msgspec

from millstream.errors import LogError, MillstreamError, PipelineError
from millstream.log.consumer import bounds, read_range
from millstream.log.producing.write import write
from millstream.log.settings import LogSettings
from millstream.log.topic_names import schemas_topic, stream_topic
from millstream.pipeline.app import App
from millstream.pipeline.model import Stream
from millstream.schema import parse_schema, to_ddl
from millstream.schema.breaking_changes import BreakingChange, StreamSchema, breaking_changes

_SECONDS = 30.0

_log = logging.getLogger(__name__)


class StoredSchema(msgspec.Struct, frozen=True):
    """A record of the topic `<app>.schemas`; its key is the stream's name."""

    schema: str  # as Spark DDL
    key: str | None = None
    event_time: str | None = None

    @classmethod
    def of(cls, stream: Stream) -> StoredSchema:
        return cls(to_ddl(stream.schema), stream.key, stream.event_time)

    def shape(self) -> StreamSchema:
        return StreamSchema(parse_schema(self.schema), self.key, self.event_time)


def check_schemas(app: App, log: LogSettings, accept: bool) -> None:
    """Compare each stream's schema with the stored one, then store the new one; blocks.

    PipelineError for a change that events in the log would not fit, unless `accept`; a stream
    without events may change in any way. After an error, nothing is stored.
    """
    stored = _read(log, schemas_topic(app.name))
    now = {stream.name: StoredSchema.of(stream) for stream in app.streams.values()}
    changed = [name for name, one in now.items() if stored.get(name) != one]
    for name in changed:
        stream = app.streams[name]
        broken = breaking_changes(stored[name].shape(), _shape(stream)) if name in stored else []
        if not broken:
            continue
        if accept:
            _log.warning("stream %s: accepted: %s", name, "; ".join(map(str, broken)))
        elif not _is_empty(log, stream_topic(app.name, name)):
            raise _refused(stream, broken)
    if changed:
        records = {name: msgspec.json.encode(now[name]) for name in changed}
        write(log, schemas_topic(app.name), records, _SECONDS)


def stored_stream(log: LogSettings, app: str, name: str) -> Stream:
    """The stream as in the last started collector; MillstreamError if there is none; blocks."""
    found = _read(log, schemas_topic(app)).get(name)
    if found is None:
        raise MillstreamError(
            f"no collector of {app} has ever had a stream {name!r}",
            remedy="start the collector with the pipeline that has it",
        )
    return App(app).stream(name, schema=found.schema, key=found.key, event_time=found.event_time)


def _shape(stream: Stream) -> StreamSchema:
    return StreamSchema(stream.schema, stream.key, stream.event_time)


def _refused(stream: Stream, broken: list[BreakingChange]) -> PipelineError:
    return PipelineError(
        f"the schema of stream {stream.name!r} has changed so that events in the log may not fit: "
        + "; ".join(map(str, broken)),
        file=stream.location.file,
        line=stream.location.line,
        remedy="undo the change, give the stream a new name, or start once with "
        "--accept-schema-change: fields that old events lack are then null",
    )


def _is_empty(log: LogSettings, topic: str) -> bool:
    return all(first == end for first, end in bounds(log, topic, _SECONDS).values())


def _read(log: LogSettings, topic: str) -> dict[str, StoredSchema]:
    first, end = bounds(log, topic, _SECONDS)[0]
    found: dict[str, StoredSchema] = {}
    if first == end:
        return found
    for record in read_range(log, topic, 0, first, end, patience=_SECONDS):
        if record.key is not None and record.value is not None:
            try:
                found[record.key.decode()] = msgspec.json.decode(record.value, type=StoredSchema)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise LogError(
                    f"cannot read the schemas in topic {topic}, offset {record.offset}: {error}",
                    remedy="a newer version may have written it: start that one",
                ) from None
    return found
