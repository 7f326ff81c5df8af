"""The HTTP API as OpenAPI, with this pipeline's own views and streams."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

import millstream
from millstream.schema import json_schema
from millstream.serve.context import State
from millstream.serve.description.messages import ANSWERS, EVENTS, SENT
from millstream.serve.transports import websocket

Described = dict[str, Any]
Parameter = tuple[str, str, Described]

_TEXT: Described = {"type": "string"}
_YES_OR_NO: Described = {"type": "boolean"}
_WHERE = ("where", "Which rows, as in n > 3 AND city = 'Berlin'", _TEXT)
_SELECT = ("select", "Which columns, comma-separated; fields of structs as window.start", _TEXT)
_LIMIT = ("limit", "The maximum number of rows", {"type": "integer", "minimum": 0})
_LINEAGE = ("lineage", "Whether rows have the columns _revision, _position …", _YES_OR_NO)
_ORDER = ("order", "As in n DESC, city", _TEXT)
_AFTER = ("after", "The position to continue from", _TEXT)
_WAIT = ("wait", "Long poll: seconds to wait for a change", {"type": "number", "maximum": 60})
_NAMED = ("named", "Server-sent events: false sends all as `message`, for onmessage", _YES_OR_NO)
_LAST_EVENT = ("Last-Event-ID", "As after, which it yields to; EventSource sends it", _TEXT)
_IF_NONE_MATCH = ("If-None-Match", "The ETag of an earlier answer", _TEXT)
_PROBLEMS = {
    "400": "A parameter that does not exist, or a value that cannot be used",
    "404": "There is no such view, stream, ledger or row",
    "405": "The method is not possible here; Allow has the ones that are",
    "403": "The page's origin is not listed in serve.origins",
    "413": "The body is too large",
    "415": "The body is not application/json",
    "503": "The server still reads the log, or Kafka does not answer; Retry-After has the seconds",
}


def describe(state: State) -> Described:
    """The document for /v1/openapi.json."""
    return {
        "openapi": "3.1.0",
        "info": {"title": f"{state.app.name}: serve", "version": millstream.__version__},
        "paths": {**_fixed(), **_views(state), **_streams(state)},
        "components": {"schemas": _schemas(state)},
    }


def message_schemas(types: Iterable[type]) -> Described:
    """JSON Schemas of those types and of what they contain, by name."""
    _, schemas = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    return schemas


def _schemas(state: State) -> Described:
    streams = {f"stream.{s.name}": json_schema(s.schema) for s in state.app.streams.values()}
    return {**streams, **message_schemas((*ANSWERS, *SENT, *websocket.RECEIVED))}


def _fixed() -> Described:
    return {
        "/v1/views": _get("All views", _json("Views")),
        "/v1/system": _get("Streams, views and tiers, with rates and latencies", _json()),
        "/v1/query": {"post": _query()},
        "/v1/connect": {"get": _connect()},
        "/v1/openapi.json": _get("This description", _json()),
        "/v1/asyncapi.json": _get("The WebSocket's messages, as AsyncAPI", _json()),
        "/health/live": _get("Whether the process answers", _json()),
        "/health/ready": _get("Whether every view has been read once", _json()),
        "/metrics": _get("Counts, for Prometheus", _content("The counts", "text/plain")),
    }


def _views(state: State) -> Described:
    paths: Described = {}
    for live in state.views.values():
        at = f"/v1/views/{live.name}"
        what = (live.description.description if live.description else "") or live.name
        asked = (_WHERE, _SELECT, _ORDER, _LIMIT, _LINEAGE)
        paths[at] = _cached(_get(f"Rows of {what}", _json("ViewRows"), *asked))
        paths[f"{at}/changes"] = _changes(live.name)
        if live.name in state.ledgers.lives:
            paths[f"{at}/ledger"] = _changes(f"the ledger of {live.name}, from its first entry on")
        if live.key is not None:
            row = _get("One row", _json("ViewRow"), _SELECT, _LINEAGE)
            what = "A JSON array of the key's values, as in [\"a\",1]; one column's value alone"
            row["get"]["parameters"].append(_parameter("path", ("key", what, _TEXT)))
            paths[f"{at}/{{key}}"] = _cached(row)
    return paths


def _streams(state: State) -> Described:
    return {f"/v1/streams/{name}/events": _changes(name) for name in state.streams.lives}


def _changes(name: str) -> Described:
    what = f"Changes of {name}: a long poll, or server-sent events with Accept: text/event-stream"
    asked = (_WHERE, _SELECT, _LIMIT, _LINEAGE, _AFTER, _WAIT, _NAMED)
    call = _get(what, _json("Poll"), *asked)
    call["get"]["parameters"].append(_parameter("header", _LAST_EVENT))
    call["get"]["responses"]["200"]["content"]["text/event-stream"] = {
        "schema": {
            "type": "string",
            "description": "Each event's data is JSON, of one of `x-data`",
        },
        "x-data": {"oneOf": _references(EVENTS)},
    }
    return call


def _connect() -> Described:
    refused = {
        "101": {"description": "The connection is a WebSocket now"},
        "403": {"description": "The page's origin is not listed in serve.origins"},
        "426": _problem("The request does not ask for a WebSocket; connect with ws://"),
        "503": {"description": "The server still reads the log"},
    }
    return {
        "summary": "A WebSocket with any number of subscriptions; /v1/asyncapi.json describes it",
        "responses": refused,
        "x-websocket": {
            "client-to-server": {"oneOf": _references(websocket.RECEIVED)},
            "server-to-client": {"oneOf": _references(SENT)},
        },
    }


def _query() -> Described:
    body = {
        "type": "object",
        "required": ["sql"],
        "properties": {"sql": _TEXT, "limit": {"type": "integer", "minimum": 0}},
        "additionalProperties": False,
    }
    return {
        "summary": "Read-only SQL over all views",
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": _responses(_json("Table"), "403", "413", "415"),
    }


def _get(summary: str, answer: Described, *asked: Parameter) -> Described:
    parameters = [_parameter("query", each) for each in asked]
    return {"get": {"summary": summary, "parameters": parameters, "responses": _responses(answer)}}


def _cached(path: Described) -> Described:
    """A path whose answer has an ETag."""
    path["get"]["parameters"].append(_parameter("header", _IF_NONE_MATCH))
    path["get"]["responses"]["304"] = {"description": "It has not changed since that answer"}
    return path


def _parameter(place: str, parameter: Parameter) -> Described:
    name, what, schema = parameter
    described = {"name": name, "in": place, "description": what, "schema": schema}
    return {**described, "required": True} if place == "path" else described


def _responses(answer: Described, *more: str) -> Described:
    statuses = ("400", "404", "405", "503", *more)
    return {"200": answer, **{status: _problem(_PROBLEMS[status]) for status in statuses}}


def _json(schema: str = "") -> Described:
    described = {"$ref": f"#/components/schemas/{schema}"} if schema else {"type": "object"}
    return _content("The answer", "application/json", described)


def _problem(what: str) -> Described:
    return _content(what, "application/problem+json", {"$ref": "#/components/schemas/Problem"})


def _content(what: str, media: str, schema: Described = _TEXT) -> Described:
    return {"description": what, "content": {media: {"schema": schema}}}


def _references(types: Iterable[type]) -> list[Described]:
    return [{"$ref": f"#/components/schemas/{each.__name__}"} for each in types]
