"""Descriptions of the collector's streams, for senders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from millstream.log.topic_names import stream_topic
from millstream.pipeline.app import App, Stream
from millstream.schema import Struct, json_schema


def describe_streams(app: App) -> dict[str, Any]:
    """All streams that senders can send to."""
    return {"app": app.name, "streams": [_stream(app, s) for s in app.streams.values()]}


def event_schema(stream: Stream) -> dict[str, Any]:
    """The JSON schema of an event. Key and event time are required, whatever the schema says."""
    needed = {stream.key, stream.event_time}
    fields = (
        replace(field, required=field.required or field.name in needed)
        for field in stream.schema.fields
    )
    return json_schema(Struct(tuple(fields)))


def _stream(app: App, stream: Stream) -> dict[str, Any]:
    return {
        "name": stream.name,
        "topic": stream_topic(app.name, stream.name),
        "key": stream.key,
        "event_time": stream.event_time,
        "lateness_ms": round(stream.lateness.total_seconds() * 1000),
        "ahead_ms": round(stream.ahead.total_seconds() * 1000),
        "delivery": stream.delivery,
        "source": stream.source and {"kind": stream.source.kind, "url": stream.source.address},
        "schema": event_schema(stream),
    }
