"""Routes of the HTTP API. Plain ASGI, because a framework halves the throughput."""

from __future__ import annotations

import dataclasses
import logging

from millstream.errors import MillstreamError
from millstream.serve.api import (
    assets,
    connections,
    groups,
    metrics,
    named_queries,
    query,
    snapshots,
    tickets,
    usage,
)
from millstream.serve.context import Context
from millstream.serve.description import asyncapi, openapi
from millstream.serve.http import HttpRequest, Response, error_response, no_body
from millstream.serve.transports import changes
from millstream.serve.views.encoding import encode
from millstream.syntax.names import suggest
from millstream.web.asgi import Disconnected, Message, Receive, Scope, Send
from millstream.web.auth.usage import count
from millstream.web.cors import allows_origin
from millstream.web.problem import RETRY, Problem

_log = logging.getLogger(__name__)
_RESOURCES = (
    "views",
    "streams",
    "query",
    "queries",
    "system",
    "tickets",
    "usage",
    "connect",
    "connections",
    "groups",
    "openapi.json",
    "asyncapi.json",
)
_NOT_CACHED = ((b"cache-control", b"no-store"),)
_WHILE_DRAINING = (("health", "live"), ("metrics",))
_SAFE_METHODS = ("GET", "OPTIONS")
_METHODS: dict[tuple[str, ...], bytes] = {("v1", "query"): b"POST", ("v1", "tickets"): b"POST"}


class HttpApi:
    """The ASGI application."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        has_started = False

        async def watched(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        async def counted(message: Message) -> None:
            count(scope, size=len(message.get("body", b"")))
            await send(message)

        try:
            response = await self._respond(HttpRequest.of(scope, receive), watched)
        except Disconnected:
            return
        except MillstreamError as error:
            response = error_response(error)
        except TimeoutError:
            response = error_response(Problem(503, "Kafka does not answer", headers=[RETRY]))
        except Exception:
            _log.exception("%s %s failed", scope["method"], scope["path"])
            problem = Problem(500, "this is a fault of the server; its log says more")
            response = error_response(problem)
        if response is not None and not has_started:
            await response.send(counted, head=scope["method"] == "HEAD")

    async def _respond(self, request: HttpRequest, send: Send) -> Response | None:
        context = self._context
        if request.method == "HEAD":
            # Without a body, so that the response does not wait for changes.
            request = dataclasses.replace(request, method="GET", receive=no_body)
        if request.path not in _WHILE_DRAINING:
            context.check_draining()
        if request.method not in _SAFE_METHODS:
            _check_origin(context, request)
        match (request.method, *request.path):
            case ("GET", "v1", "views"):
                return await snapshots.list_views(context, request)
            case ("GET", "v1", "views", name):
                return await snapshots.show_view(context, request, name)
            case ("GET", "v1", "views", name, "changes"):
                return await self._changes(request, send, "view", name)
            case ("GET", "v1", "views", name, "ledger"):
                return await self._changes(request, send, "ledger", name)
            case ("GET", "v1", "views", name, key):
                return await snapshots.show_row(context, request, name, key)
            case ("GET", "v1", "streams", name, "events"):
                return await self._changes(request, send, "stream", name)
            case ("POST", "v1", "query"):
                return await query.run_query(context, request)
            case ("GET", "v1", "queries"):
                return await named_queries.list_queries(context, request)
            case ("GET", "v1", "queries", name, "changes"):
                return await self._changes(request, send, "query", name)
            case ("GET", "v1", "queries", name):
                return await named_queries.run_named_query(context, request, name)
            case ("POST", "v1", "tickets"):
                return await tickets.issue_ticket(context, request)
            case ("GET", "v1", "system"):
                request.caller.check("admin")
                return Response(encode(context.system.describe()), headers=_NOT_CACHED)
            case ("GET", "v1", "usage"):
                return await usage.show_usage(context, request)
            case ("GET", "v1", "connections"):
                return await connections.list_connections(context, request)
            case ("DELETE", "v1", "connections", identifier):
                return await connections.close_connection(context, request, identifier)
            case ("GET", "v1", "groups"):
                return await groups.list_groups(context, request)
            case ("GET", "v1", "groups", name):
                return await groups.show_group(context, request, name)
            case ("DELETE", "v1", "groups", name):
                return await groups.drop_group(context, request, name)
            case ("POST", "v1", "groups", name, "reset"):
                return await groups.reset_group(context, request, name)
            case ("GET", "v1", "openapi.json"):
                return Response(encode(openapi.describe(context, request.caller)))
            case ("GET", "v1", "asyncapi.json"):
                return Response(encode(asyncapi.describe(context)))
            case ("GET", "health", "live"):
                return Response(b'{"live":true}')
            case ("GET", "health", "ready"):
                context.check_ready()
                return Response(b'{"ready":true}')
            case ("GET", "metrics"):
                request.caller.check("admin")
                text = await metrics.render(context)
                return Response(text.encode(), content_type=metrics.CONTENT_TYPE)
            case ("GET", first, *_) if first not in ("v1", "health", "metrics"):
                return assets.serve(request)
        raise _unknown(request)

    async def _changes(
        self, request: HttpRequest, send: Send, kind: str, name: str
    ) -> Response | None:
        if changes.wants_events(request):
            await changes.send_events(self._context, request, send, kind, name)
            return None
        return await changes.poll(self._context, request, kind, name)


def _check_origin(context: Context, request: HttpRequest) -> None:
    """Problem if a page of another origin sent the request.

    Browsers send some requests without asking the server first. Without this check, any page that
    someone opens on this machine could change something on a server that needs no login.
    """
    origin, host = (
        request.headers.get(name, b"").decode("latin-1") for name in (b"origin", b"host")
    )
    if not allows_origin(context.settings.cors_origins, origin, host):
        raise Problem(
            403,
            f"a page of {origin[:100]} may not call this",
            remedy="add its origin to serve.cors_origins if it may",
        )


def _unknown(request: HttpRequest) -> Problem:
    path = request.raw_path[:200]
    if request.path == ("v1", "connect"):
        return Problem(
            426,
            "this is a WebSocket",
            remedy="connect with ws://",
            headers=[(b"upgrade", b"websocket")],
        )
    allowed = _METHODS.get(request.path, b"GET, HEAD")
    if request.path[:2] == ("v1", "connections") and len(request.path) == 3:
        allowed = b"DELETE"
    elif request.path[:2] == ("v1", "groups") and len(request.path) > 2:
        allowed = b"GET, HEAD, DELETE" if len(request.path) == 3 else b"POST"
    known = request.path[:1] == ("v1",) and len(request.path) > 1 and request.path[1] in _RESOURCES
    if (known or request.path[:1] != ("v1",)) and request.method not in allowed.decode():
        return Problem(405, f"{path} does not take {request.method}", headers=[(b"allow", allowed)])
    name = request.path[1] if len(request.path) > 1 else ""
    return Problem(404, f"there is nothing at {path}", remedy=suggest(name, _RESOURCES))
