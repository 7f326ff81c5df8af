"""The API in OpenAPI's words, with this pipeline's own views and streams."""

from __future__ import annotations

from typing import Any

import millstream
from millstream.schema import json_schema
from millstream.serve.state import State

_TEXT = {"type": "string"}
_WHERE = ("where", "Which rows, as in n > 3 AND city = 'Berlin'", _TEXT)
_SELECT = ("select", "Which columns, comma-separated; fields of structs as window.start", _TEXT)
_LIMIT = ("limit", "At most so many rows", {"type": "integer", "minimum": 0})
_LINEAGE = ("lineage", "With the columns _revision, _position …", {"type": "boolean"})
_ORDER = ("order", "As in n DESC, city", _TEXT)
_AFTER = ("after", "The position to go on from", _TEXT)
_WAIT = ("wait", "Seconds to wait for a change", {"type": "number", "maximum": 60})


def describe(state: State) -> dict[str, Any]:
    """The document for /v1/openapi.json."""
    paths: dict[str, Any] = {
        "/v1/views": _get("All views"),
        "/v1/system": _get("Streams, views and tiers, with rates and latencies"),
        "/v1/query": {"post": _query()},
    }
    for live in state.views.values():
        at = f"/v1/views/{live.name}"
        what = (live.description.description if live.description else "") or live.name
        paths[at] = _get(f"Rows of {what}", _WHERE, _SELECT, _ORDER, _LIMIT, _LINEAGE)
        paths[f"{at}/changes"] = _changes(live.name)
        if live.name in state.ledgers.lives:
            paths[f"{at}/ledger"] = _changes(f"the ledger of {live.name}, from its first entry on")
        if live.key is not None:
            paths[f"{at}/{{key}}"] = _get("One row", _SELECT, _LINEAGE, path=("key",))
    for name in state.streams.lives:
        paths[f"/v1/streams/{name}/events"] = _changes(name)
    schemas = {s.name: json_schema(s.schema) for s in state.app.streams.values()}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"{state.app.name}: views", "version": millstream.__version__},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _changes(name: str) -> dict[str, Any]:
    what = f"Changes of {name}: server-sent events, or a long poll with Accept: application/json"
    call = _get(what, _WHERE, _SELECT, _LIMIT, _LINEAGE, _AFTER, _WAIT)
    call["get"]["responses"]["200"]["content"]["text/event-stream"] = {"schema": _TEXT}
    return call


def _get(
    summary: str, *parameters: tuple[str, str, dict[str, Any]], path: tuple[str, ...] = ()
) -> dict[str, Any]:
    listed: list[dict[str, Any]] = [
        {"name": name, "in": "query", "description": what, "schema": schema}
        for name, what, schema in parameters
    ]
    listed += [{"name": n, "in": "path", "required": True, "schema": _TEXT} for n in path]
    return {"get": {"summary": summary, "parameters": listed, "responses": _responses()}}


def _query() -> dict[str, Any]:
    body = {
        "type": "object",
        "required": ["sql"],
        "properties": {"sql": _TEXT, "limit": {"type": "integer", "minimum": 0}},
    }
    return {
        "summary": "Read-only SQL over all views",
        "requestBody": {"content": {"application/json": {"schema": body}}},
        "responses": _responses(),
    }


def _responses() -> dict[str, Any]:
    return {
        "200": {"description": "OK", "content": {"application/json": {"schema": {}}}},
        "default": {
            "description": "What was wrong",
            "content": {"application/problem+json": {"schema": {"type": "object"}}},
        },
    }
