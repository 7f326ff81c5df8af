"""The OpenAPI description of the collector: every request, with every status that occurs."""

from __future__ import annotations

from typing import Any

import millstream
from millstream.collect.http.describe import event_schema
from millstream.collect.http.request import levels_of
from millstream.collect.settings import CollectSettings
from millstream.pipeline.app import App, Stream

Described = dict[str, Any]

_TEXT: Described = {"type": "string"}
_INTEGER: Described = {"type": "integer"}
_TIME: Described = {"type": "string", "format": "date-time"}


def _text(description: str) -> Described:
    return {**_TEXT, "description": description}


def _integer(description: str) -> Described:
    return {**_INTEGER, "description": description}


def _array(items: Described, description: str) -> Described:
    return {"type": "array", "items": items, "description": description}


def _object(required: list[str], properties: Described) -> Described:
    return {"type": "object", "required": required, "properties": properties}


_OUTCOME = {
    "accepted": _INTEGER,
    "receipts": _array(_TEXT, "One for each accepted event, in their order."),
    "rejected": _array(
        _object(
            ["index", "error", "field", "receipt"],
            {
                "index": _integer("The event's index in the request, from 0."),
                "error": _TEXT,
                "field": _text("The wrong field; empty: the whole event."),
                "receipt": _TEXT,
            },
        ),
        "The first 1,000 rejected events; all are in the rejected topic.",
    ),
    "rejected_total": _integer("The number of rejected events, if `rejected` does not list all."),
}
_ALWAYS = ["accepted", "receipts", "rejected"]  # required
_ANSWER = _object(
    _ALWAYS,
    {
        **_OUTCOME,
        "failed": _array(
            _object(
                ["index", "error", "receipt"],
                {"index": _INTEGER, "error": _TEXT, "receipt": _TEXT},
            ),
            "Events that Kafka refuses for good; they are in the failed store.",
        ),
        "duplicates": _array(
            _INTEGER,
            "Indexes of accepted events that were received before; they have the receipts of the "
            "first ones.",
        ),
        "shed": _integer("Events that were dropped under pressure; they have no receipt."),
        "future": _array(
            _INTEGER,
            "Indexes of accepted events that are dated too far ahead: they are in the late topic, "
            "and in no view.",
        ),
        "warning": _text("A problem with accepted events."),
        "detail": _text("Why some events are not in the log yet."),
    },
)
_PROBLEM = _object(
    ["type", "title", "status", "detail"],
    {"type": _TEXT, "title": _TEXT, "status": _INTEGER, "detail": _TEXT},
)
_ALL_REJECTED = {
    "allOf": [
        {"$ref": "#/components/schemas/Problem"},
        {"required": ["field", *_ALWAYS], "properties": {"field": _TEXT, **_OUTCOME}},
    ]
}
_PLACE = _object(
    ["state", "stream", "collector", "sequence", "index", "received_at"],
    {
        "state": {"enum": ["journaled", "logged", "rejected", "failed"]},
        **dict.fromkeys(("stream", "collector", "topic"), _TEXT),
        **dict.fromkeys(("sequence", "index", "partition", "offset"), _INTEGER),
        **dict.fromkeys(("received_at", "journaled_at", "logged_at"), _TIME),
        "id": _text("The event's id in the log."),
        "error": _text("Why it was rejected, or failed."),
    },
)
# Any request may get these answers.
_ANY_REQUEST = {
    "400": "The request is not valid HTTP.",
    "405": "The method is not allowed here; `Allow` lists those that are.",
    "408": "The request did not arrive fast enough.",
    "431": "The headers are too large.",
    "503": "There are too many connections, or the answer is not available now.",
}
_POST = {
    "400": "An unknown parameter, a header or body that cannot be read, or an empty body.",
    "409": "The stream promises more than `ack=none` can keep.",
    "413": "The body is too large, or has too many events.",
    "415": "The content type or encoding is not supported.",
    "503": "Nothing was accepted: the journal is full or fails, or Kafka is behind. Retry.",
}
_RETRY = {"Retry-After": {"schema": _INTEGER, "description": "Seconds to wait."}}
_FORMS = ("application/x-ndjson", "text/csv")
_HEADERS = {
    "Idempotency-Key": "Identifies the request: repeated with the same key, it is stored once.",
    "Correlation-Id": "A receipt, or any text: stored with the events as ce_correlationid.",
}


def openapi(app: App, settings: CollectSettings) -> Described:
    """The description of all requests, with each stream's schema."""
    shared = _shared_problems(settings)
    return {
        "openapi": "3.1.0",
        "info": {"title": f"{app.name}: collect", "version": millstream.__version__},
        "security": _security(settings),
        "paths": {
            **{f"/v1/streams/{s.name}": {"post": _post(s, shared)} for s in app.streams.values()},
            "/v1/streams": {"get": _get("The streams.", shared)},
            "/v1/receipts/{receipt}": {"get": _receipts(shared)},
            "/v1/openapi.json": {"get": _get("This description.", shared)},
            "/health/live": {"get": _open(_get("Whether the process answers.", shared))},
            "/health/ready": {"get": _open(_get("Whether events can be accepted.", shared))},
            "/metrics": {
                "get": _get("Metrics, as OpenMetrics.", shared, "application/openmetrics-text")
            },
        },
        "components": {
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key, or a JSON Web Token.",
                },
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "certificate": {"type": "mutualTLS"},
            },
            "schemas": {
                "Answer": _ANSWER,
                "Place": _PLACE,
                "Problem": _PROBLEM,
                "AllRejected": _ALL_REJECTED,
                **{f"stream.{s.name}": event_schema(s) for s in app.streams.values()},
            },
        },
    }


def _security(settings: CollectSettings) -> list[Described]:
    ways = {"key": ["bearer", "key"], "jwt": ["bearer"], "certificate": ["certificate"]}
    names = dict.fromkeys(name for login in settings.auth for name in ways[login])
    return [{name: []} for name in names]


def _shared_problems(settings: CollectSettings) -> Described:
    problems = {status: _problem(text) for status, text in _ANY_REQUEST.items()}
    problems["503"]["headers"] = _RETRY
    if settings.auth:
        problems["401"] = _problem("The login is missing or unknown.")
    if settings.auth or settings.rate:
        problems["429"] = _problem("More than the caller may send; nothing was accepted.")
        problems["429"]["headers"] = _RETRY
    return problems


def _post(stream: Stream, shared: Described) -> Described:
    one = {"$ref": f"#/components/schemas/stream.{stream.name}"}
    default, allowed = levels_of(stream)
    named = {status: _problem(text) for status, text in _POST.items()}
    named["403"] = _problem("The login, or the page's origin, may not write to this stream.")
    named["503"]["headers"] = _RETRY
    ack = {"type": "string", "enum": list(allowed), "default": default}
    answers = {
        "200": _json("The accepted events are in the log.", "Answer"),
        "202": _json("The accepted events are on disk, and will get into the log.", "Answer"),
        "422": _problem("No event is valid; each is in the rejected topic.", "AllRejected"),
    }
    if "none" in allowed:
        answers["204"] = {"description": "Sent to Kafka; the outcome is not reported."}
    return {
        "operationId": f"send_{stream.name}",
        "summary": f"Send events to {stream.name}.",
        "parameters": [
            {"name": "ack", "in": "query", "schema": ack},
            *(
                {
                    "name": name,
                    "in": "header",
                    "description": text,
                    "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"},
                }
                for name, text in _HEADERS.items()
            ),
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"oneOf": [one, {"type": "array", "items": one}]}},
                "application/cloudevents+json": {"schema": _cloud_event(one)},
                "application/cloudevents-batch+json": {
                    "schema": {"type": "array", "items": _cloud_event(one)}
                },
                **{form: {"schema": _TEXT} for form in _FORMS},
            },
        },
        "responses": {**shared, **named, **answers},
    }


def _cloud_event(data: Described) -> Described:
    text = {"type": "string", "minLength": 1}
    return {
        "type": "object",
        "required": ["specversion", "id", "source", "type"],
        "properties": {
            "specversion": {"const": "1.0"},
            "id": text,
            "source": text,
            "type": text,
            "data": data,
        },
    }


def _receipts(shared: Described) -> Described:
    receipt = {"name": "receipt", "in": "path", "required": True, "schema": _TEXT}
    answers = {
        "200": _json("Where the event is.", "Place"),
        "404": _problem("No collector of this system issued the receipt."),
        "410": _problem("The event was there, and no longer is."),
    }
    if "401" in shared:
        answers["403"] = _problem("The login may not write to the event's stream.")
    return {
        "summary": "Where an event is now.",
        "parameters": [receipt],
        "responses": {**shared, **answers},
    }


def _get(summary: str, shared: Described, media: str = "application/json") -> Described:
    answer = {"description": "The answer.", "content": {media: {}}}
    return {"summary": summary, "responses": {**shared, "200": answer}}


def _open(call: Described) -> Described:
    """The request without a login."""
    return {**call, "security": []}


def _json(text: str, schema: str, media: str = "application/json") -> Described:
    content = {"schema": {"$ref": f"#/components/schemas/{schema}"}}
    return {"description": text, "content": {media: content}}


def _problem(text: str, schema: str = "Problem") -> Described:
    return _json(text, schema, "application/problem+json")
