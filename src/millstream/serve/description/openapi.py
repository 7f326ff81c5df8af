"""The HTTP API as OpenAPI, with this pipeline's own views and streams."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

import millstream
from millstream.pipeline.model import QueryParameter
from millstream.schema import Schema, json_schema
from millstream.serve.api.formats import FORMATS
from millstream.serve.context import Context
from millstream.serve.description.messages import EVENTS, RESPONSES, SENT
from millstream.serve.queries.named_query import hides_any_column
from millstream.serve.transports import client_messages
from millstream.web.auth.caller import Caller

JsonObject = dict[str, Any]
Parameter = tuple[str, str, JsonObject]

_STRING: JsonObject = {"type": "string"}
_BOOLEAN: JsonObject = {"type": "boolean"}
_WHERE = ("where", "Which rows, such as n > 3 AND city = 'Berlin'", _STRING)
_SELECT = ("select", "Which columns, comma-separated; a struct's field is window.start", _STRING)
_LIMIT = ("limit", "The maximum number of rows", {"type": "integer", "minimum": 0})
_LINEAGE = ("lineage", "Whether rows have the columns _revision, _position …", _BOOLEAN)
_ORDER = ("order", "Such as n DESC, city", _STRING)
_AFTER = ("after", "The position or the time (RFC 3339) to continue from", _STRING)
_WHEN_SLOW = (
    "when_slow",
    "What a client gets that reads too slowly; sample is for server-sent events",
    {"type": "string", "enum": ["buffer", "conflate", "sample"]},
)
_RATES = tuple(
    (name, f"Server-sent events: {what} per second", {"type": "number", "exclusiveMinimum": 0})
    for name, what in (
        ("sample", "changes, with when_slow=sample,"),
        ("max_rate", "changes"),
        ("max_rate_per_key", "changes of one key"),
    )
)
_WAIT = ("wait", "Long poll: seconds to wait for a change", {"type": "number", "maximum": 60})
_NAMED = ("named", "Server-sent events: false sends all as `message`, for onmessage", _BOOLEAN)
_LAST_EVENT = (
    "Last-Event-ID",
    "As after, and precedes it: EventSource repeats the address",
    _STRING,
)
_IF_NONE_MATCH = ("If-None-Match", "The ETag of an earlier answer", _STRING)
_SELECTION = (_WHERE, _SELECT, _LIMIT, _LINEAGE, _WHEN_SLOW, *_RATES)  # of rows and changes
_LOGINS = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, or a JWT."},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
_PROBLEMS = {
    "400": "A parameter that does not exist, or a value that cannot be used",
    "404": "There is no such view, stream, ledger or row",
    "405": "The method is not allowed here; Allow lists the allowed ones",
    "401": "No key or token, or one that is unknown, expired or revoked",
    "403": "The caller lacks the right, or the page's origin is not in serve.cors_origins",
    "406": "Accept has no format that exists; `available` lists them",
    "429": "The caller sends too many requests, or has too many connections; see Retry-After",
    "413": "The body is too large",
    "415": "The body is not application/json",
    "503": "The server is still reading the log, or Kafka does not answer; see Retry-After",
}


def describe(context: Context, caller: Caller) -> JsonObject:
    """The document for /v1/openapi.json, without columns that the caller does not see."""
    return {
        "openapi": "3.1.0",
        "info": {"title": f"{context.app.name}: serve", "version": millstream.__version__},
        "paths": {**_fixed(), **_views(context), **_streams(context), **_queries(context, caller)},
        "components": {"schemas": _schemas(context, caller), "securitySchemes": _LOGINS},
        **({"security": [{"bearer": []}, {"key": []}]} if context.settings.auth else {}),
    }


def message_schemas(types: Iterable[type]) -> JsonObject:
    """JSON Schemas of these types and of the types that they contain, by name."""
    _, schemas = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    return schemas


def _schemas(context: Context, caller: Caller) -> JsonObject:
    streams = {
        f"stream.{name}": _event_schema(
            stream.schema, context.visibility("stream", name, caller).hidden
        )
        for name, stream in context.app.streams.items()
    }
    return {**streams, **message_schemas((*RESPONSES, *SENT, *EVENTS, *client_messages.RECEIVED))}


def _event_schema(schema: Schema, hidden: Collection[str]) -> JsonObject:
    shown = Schema(tuple(field for field in schema.fields if field.name not in hidden))
    return json_schema(shown)


def _fixed() -> JsonObject:
    return {
        "/v1/views": _get("All views", _json("Views")),
        "/v1/system": _get("Streams, views and tiers, with rates and latencies", _json()),
        "/v1/query": {"post": _query()},
        "/v1/tickets": {"post": _tickets()},
        "/v1/usage": _get("What each caller has used, or only oneself", _json("UsageList")),
        "/v1/queries": _get("All named queries", _json("Queries")),
        "/v1/connect": {"get": _connect()},
        "/v1/connections": _get("Connections of clients", _json("ConnectionList")),
        "/v1/connections/{id}": {"delete": _close_connection()},
        "/v1/groups": _get("All groups", _json("GroupList")),
        "/v1/groups/{name}": {"get": _group("One group", "Group"), "delete": _drop_group()},
        "/v1/groups/{name}/reset": {"post": _reset_group()},
        "/v1/openapi.json": _get("This description", _json()),
        "/v1/asyncapi.json": _get("The WebSocket's messages, as AsyncAPI", _json()),
        "/health/live": _get("Whether the process answers", _json()),
        "/health/ready": _get("Whether every view has been read once", _json()),
        "/metrics": _get("Counts, for Prometheus", _content("The counts", "text/plain")),
    }


def _views(context: Context) -> JsonObject:
    paths: JsonObject = {}
    for view in context.views.values():
        at = f"/v1/views/{view.name}"
        what = (view.description.description if view.description else "") or view.name
        parameters = (_WHERE, _SELECT, _ORDER, _LIMIT, _LINEAGE)
        paths[at] = _cached(_get(f"Rows of {what}", _rows("ViewRows"), *parameters))
        paths[at]["get"]["responses"]["406"] = _problem(_PROBLEMS["406"])
        paths[f"{at}/changes"] = _changes(view.name)
        if view.name in context.ledgers.served:
            paths[f"{at}/ledger"] = _changes(f"the ledger of {view.name}, from its first entry on")
        if view.key is not None:
            row = _get("One row", _json("ViewRow"), _SELECT, _LINEAGE)
            what = "A JSON array of the key's values, such as [\"a\",1]; or one column's value"
            row["get"]["parameters"].append(_parameter("path", ("key", what, _STRING)))
            paths[f"{at}/{{key}}"] = _cached(row)
    return paths


def _queries(context: Context, caller: Caller) -> JsonObject:
    paths: JsonObject = {}
    own = context.queries.callable_by(caller)
    for query in context.queries.served.values():
        parameters = [_query_parameter(each) for each in query.declared.parameters]
        call = _cached(_get(query.declared.description or query.name, _rows("Table"), *parameters))
        call["get"]["responses"]["406"] = _problem(_PROBLEMS["406"])
        visible = context.visible_to(query.declared.views, caller)
        if query in own and not hides_any_column(visible.values()):
            call["get"]["responses"]["200"]["x-columns"] = query.columns
        paths[f"/v1/queries/{query.name}"] = call
        paths[f"/v1/queries/{query.name}/changes"] = _changes(query.name, parameters)
    return paths


def _query_parameter(parameter: QueryParameter) -> Parameter:
    schema: JsonObject = {"type": parameter.type, "default": parameter.default}
    if parameter.default is None:
        schema["type"] = [parameter.type, "null"]
    return parameter.name, f"The query's :{parameter.name}", schema


def _streams(context: Context) -> JsonObject:
    return {f"/v1/streams/{name}/events": _changes(name) for name in context.streams.served}


def _changes(name: str, selection: Iterable[Parameter] = _SELECTION) -> JsonObject:
    what = f"Changes of {name}: a long poll, or server-sent events with Accept: text/event-stream"
    call = _get(what, _json("Poll"), *selection, _AFTER, _WAIT, _NAMED)
    call["get"]["parameters"].append(_parameter("header", _LAST_EVENT))
    call["get"]["responses"]["200"]["content"]["text/event-stream"] = {
        "schema": {
            "type": "string",
            "description": "Each event's data is JSON, of one of `x-data`",
        },
        "x-data": {"oneOf": _references(EVENTS)},
    }
    return call


def _connect() -> JsonObject:
    refused = {
        "101": {"description": "The connection is a WebSocket now"},
        "401": _problem(_PROBLEMS["401"]),
        "403": _problem(_PROBLEMS["403"]),
        "426": _problem("The request does not ask for a WebSocket; connect with ws://"),
        "429": _problem(_PROBLEMS["429"]),
        "503": _problem("The server is still reading the log"),
    }
    return {
        "summary": "A WebSocket with any number of subscriptions; /v1/asyncapi.json describes it",
        "responses": refused,
        "x-websocket": {
            "client-to-server": {"oneOf": _references(client_messages.RECEIVED)},
            "server-to-client": {"oneOf": _references(SENT)},
        },
    }


def _close_connection() -> JsonObject:
    return {
        "summary": "Closes the connection of a client",
        "parameters": [_parameter("path", ("id", "As in the list of connections", _STRING))],
        "responses": _responses(_json("ClosedConnection")),
    }


def _group(summary: str, answer: str) -> JsonObject:
    return {
        "summary": summary,
        "parameters": [_parameter("path", ("name", "The group's name", _STRING))],
        "responses": _responses(_json(answer)),
    }


def _drop_group() -> JsonObject:
    return _group("Removes a group, its position and its undelivered messages", "DroppedGroup")


def _reset_group() -> JsonObject:
    body = {
        "type": "object",
        "required": ["to"],
        "properties": {"to": {**_STRING, "description": "A time, a position, start or end"}},
        "additionalProperties": False,
    }
    return {
        **_group("Lets a group continue at another position", "ResetDone"),
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
    }


def _query() -> JsonObject:
    body = {
        "type": "object",
        "required": ["sql"],
        "properties": {"sql": _STRING, "limit": {"type": "integer", "minimum": 0}},
        "additionalProperties": False,
    }
    return {
        "summary": "Read-only SQL over all views that the caller may query",
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": _responses(_rows("Table"), "406", "413", "415"),
    }


def _tickets() -> JsonObject:
    return {
        "summary": "A ticket for one WebSocket or EventSource connection, valid for 30 seconds",
        "responses": _responses(_json("Ticket")),
    }


def _get(summary: str, answer: JsonObject, *parameters: Parameter) -> JsonObject:
    described = [_parameter("query", each) for each in parameters]
    return {"get": {"summary": summary, "parameters": described, "responses": _responses(answer)}}


def _cached(path: JsonObject) -> JsonObject:
    """A path whose answer has an ETag."""
    path["get"]["parameters"].append(_parameter("header", _IF_NONE_MATCH))
    path["get"]["responses"]["304"] = {"description": "It has not changed since that answer"}
    return path


def _parameter(place: str, parameter: Parameter) -> JsonObject:
    name, what, schema = parameter
    described = {"name": name, "in": place, "description": what, "schema": schema}
    return {**described, "required": True} if place == "path" else described


def _responses(answer: JsonObject, *more: str) -> JsonObject:
    statuses = ("400", "401", "403", "404", "405", "429", "503", *more)
    return {"200": answer, **{status: _problem(_PROBLEMS[status]) for status in statuses}}


def _json(schema: str = "") -> JsonObject:
    described = {"$ref": f"#/components/schemas/{schema}"} if schema else {"type": "object"}
    return _content("The answer", "application/json", described)


def _rows(schema: str) -> JsonObject:
    """An answer with rows, in every format."""
    answer = _json(schema)
    for media in list(FORMATS)[1:]:
        answer["content"][media] = {"schema": _STRING}
    return answer


def _problem(what: str) -> JsonObject:
    return _content(
        what, "application/problem+json", {"$ref": "#/components/schemas/ProblemDetails"}
    )


def _content(what: str, media: str, schema: JsonObject = _STRING) -> JsonObject:
    return {"description": what, "content": {media: {"schema": schema}}}


def _references(types: Iterable[type]) -> list[JsonObject]:
    return [{"$ref": f"#/components/schemas/{each.__name__}"} for each in types]
