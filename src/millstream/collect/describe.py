"""What a sender can ask about the collector: its streams, and its calls as OpenAPI."""

from __future__ import annotations

from typing import Any

import millstream
from millstream.app import App, Stream
from millstream.log.topics import stream_topic
from millstream.schema import json_schema

_REJECTION = {
    "type": "object",
    "required": ["index", "error", "field", "receipt"],
    "properties": {
        "index": {"type": "integer", "description": "The event's place in the request, from 0."},
        "error": {"type": "string"},
        "field": {"type": "string", "description": "Where in the event; empty: the whole of it."},
        "receipt": {"type": "string"},
    },
}
_ANSWER = {
    "type": "object",
    "required": ["accepted", "receipts", "rejected"],
    "properties": {
        "accepted": {"type": "integer"},
        "receipts": {
            "type": "array",
            "items": {"type": "string"},
            "description": "One for each accepted event, in their order.",
        },
        "rejected": {"type": "array", "items": _REJECTION},
    },
}
_PROBLEM = {
    "type": "object",
    "required": ["title", "status", "detail"],
    "properties": {
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
}
_PROBLEMS = {
    "400": "An unknown parameter, or no event in the body.",
    "404": "No such stream.",
    "408": "The body was not complete in time.",
    "413": "The body is too large.",
    "415": "The content type or encoding is not read.",
    "422": "No event of the request is valid; each is in the rejected topic.",
    "501": "That ack level is not built yet.",
    "503": "Kafka is behind or away. Events without a receipt are not known to be in the log.",
}


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
        "delivery": stream.delivery,
        "source": stream.source and {"kind": stream.source.kind, "url": stream.source.address},
        "schema": json_schema(stream.schema),
    }


def openapi(app: App) -> dict[str, Any]:
    """The collector's calls, with each stream's schema."""
    return {
        "openapi": "3.1.0",
        "info": {"title": f"{app.name}: collect", "version": millstream.__version__},
        "paths": {
            **{f"/v1/streams/{s.name}": {"post": _post(s)} for s in app.streams.values()},
            "/v1/streams": {"get": _get("The streams that are open.")},
            "/v1/receipts/{receipt}": {
                "get": _get("Where an event is now.")
                | {
                    "parameters": [
                        {
                            "name": "receipt",
                            "in": "path",
                            "required": True,
                            "schema": {"type": "string"},
                        }
                    ]
                }
            },
            "/health/live": {"get": _get("Whether the process answers.")},
            "/health/ready": {"get": _get("Whether Kafka confirms what the collector writes.")},
            "/metrics": {"get": {"summary": "Counts, as OpenMetrics.", "responses": _ok()}},
        },
        "components": {
            "schemas": {
                "Answer": _ANSWER,
                "Problem": _PROBLEM,
                **{f"stream.{s.name}": json_schema(s.schema) for s in app.streams.values()},
            }
        },
    }


def _post(stream: Stream) -> dict[str, Any]:
    one = {"$ref": f"#/components/schemas/stream.{stream.name}"}
    return {
        "operationId": f"send_{stream.name}",
        "summary": f"Send events to {stream.name}; answered when Kafka's replicas have them",
        "parameters": [
            {
                "name": "ack",
                "in": "query",
                "schema": {"type": "string", "enum": ["log"], "default": "log"},
            }
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"oneOf": [one, {"type": "array", "items": one}]}},
                "application/x-ndjson": {"schema": one},
            },
        },
        "responses": {
            "200": {
                "description": "The accepted events are in the log.",
                "content": {
                    "application/json": {"schema": {"$ref": "#/components/schemas/Answer"}}
                },
            },
            **{status: _problem(text) for status, text in _PROBLEMS.items()},
        },
    }


def _problem(text: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": text, "content": {"application/problem+json": {"schema": schema}}}


def _get(summary: str) -> dict[str, Any]:
    return {"summary": summary, "responses": _ok()}


def _ok() -> dict[str, Any]:
    return {"200": {"description": "The answer."}}
