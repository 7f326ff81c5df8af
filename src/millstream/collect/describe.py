"""What a sender can ask about the collector's streams."""

from __future__ import annotations

from typing import Any

from millstream.app import App, Stream
from millstream.log.topics import stream_topic
from millstream.schema import json_schema


def describe_streams(app: App) -> dict[str, Any]:
    """The streams that are open to senders."""
    return {"app": app.name, "streams": [_stream(app, s) for s in app.streams.values()]}


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
        "schema": json_schema(stream.schema),
    }
